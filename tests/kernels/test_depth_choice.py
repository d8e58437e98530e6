"""The depth chooser on made-up machines: it finds the best depth, comes back from plain, and keeps its bound."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrun.kernels.depth_choice import (
    BOUND_TOKENS,
    CAP,
    DWELL,
    EARN,
    LOAN,
    MARGIN,
    PRIOR,
    Costs,
    DepthChooser,
    Evidence,
    WidthCosts,
)

STEEP = (1.4, 1.9, 2.5)
FLAT = (1.05, 1.1, 1.15)


def machine(head=STEEP, copied=None, read=0.0, plain=1.0):
    scaled = [tuple(each * plain for each in costs) for costs in (head, copied or head)]
    return WidthCosts(plain, {"head": scaled[0], "copied": scaled[1]}, read * plain)


def run(chooser, costs, cycles, keeps, source=lambda cycle: "head", room=99, seconds=None):
    """Depths, and running tokens and true time in plain cycles. keeps(cycle, position) -> bool."""
    depths, tokens, spent, behind = [], [0], [0.0], 0
    for cycle in range(cycles):
        here = source(cycle)
        depth = chooser.choose(here, room)
        kept = next((i for i in range(depth) if not keeps(cycle, i)), depth)
        took = costs.drafted[here][depth - 1] if depth else costs.plain
        by = here if depth else None
        late, behind = (behind, 0) if by == "head" else (0, behind + kept + 1)
        chooser.observe(by, depth, kept, took if seconds is None else seconds(by, depth, took))
        depths.append(depth)
        tokens.append(tokens[-1] + kept + 1)
        spent.append(spent[-1] + (took + late * costs.read) / costs.plain)
    return depths, tokens, spent


def chance(probabilities, seed=0):
    rng = np.random.default_rng(seed)
    table = rng.random((5000, 8))
    return lambda cycle, i: table[cycle, i] < probabilities[i]


def best_depth(costs, keeps):
    rates = [1 / costs.plain]
    for depth, seconds in enumerate(costs.drafted["head"], start=1):
        rates.append((1 + sum(np.prod(keeps[: i + 1]) for i in range(depth))) / seconds)
    return int(np.argmax(rates)), rates


@pytest.mark.parametrize("costs", [STEEP, FLAT, (1.1, 1.9, 4.0), (1.6, 1.7, 1.8)])
@pytest.mark.parametrize("keeps", [(0.05, 0.05, 0.05), (0.9, 0.9, 0.9), (0.9, 0.2, 0.1), (0.6, 0.5, 0.4)])
@pytest.mark.parametrize("live", [False, True])
def test_it_settles_near_the_best_depth(costs, keeps, live):
    measured = machine(costs)
    _, tokens, spent = run(DepthChooser(measured, 3, live), measured, 3000, chance(keeps))
    _, rates = best_depth(measured, keeps)
    achieved = (tokens[-1] - tokens[1500]) / (spent[-1] - spent[1500])
    assert achieved > 0.93 * max(rates)
    assert achieved > (1 - MARGIN) * rates[0]


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    costs=st.sampled_from([STEEP, FLAT, (1.1, 1.9, 4.0), (3.0, 3.0, 3.0), (9.0, 9.5, 20.0)]),
    read=st.sampled_from([0.0, 0.004, EARN, 0.2]),
    pattern=st.lists(st.integers(0, 3), min_size=1, max_size=24),
    sources=st.lists(st.sampled_from(["head", "copied", None]), min_size=1, max_size=9),
)
def test_no_sequence_makes_it_lose_more_than_its_bound(data, costs, read, pattern, sources):
    """Adversarial: kept lengths and sources of any period, also ones that answer the chooser's own depth."""
    measured = machine(costs, copied=(1.2, 1.3, 1.6), read=read)
    answer = data.draw(st.booleans())

    def keeps(cycle, i):
        return i < pattern[cycle % len(pattern)]

    def spiteful(cycle, i):
        return chooser.slack > CAP / 2 and keeps(cycle, i)  # feeds it until it trusts, then starves it

    chooser = DepthChooser(measured, 3, False)
    source = lambda cycle: sources[cycle % len(sources)]  # noqa: E731
    depths, tokens, spent = run(chooser, measured, 400, spiteful if answer else keeps, source)
    assert all(time <= (1 + EARN) * made + LOAN + 1e-9 for made, time in zip(tokens, spent, strict=True))
    late = [time / made for made, time in zip(tokens, spent, strict=True) if made >= BOUND_TOKENS]
    assert late
    assert max(late) <= 1 + MARGIN + 1e-9
    assert all(depth == 0 for cycle, depth in enumerate(depths) if source(cycle) is None)


def test_the_loss_of_a_late_bad_stretch_is_capped_whatever_was_won_before():
    measured = machine(FLAT)
    _, tokens, spent = run(DepthChooser(measured, 3, False), measured, 2000, lambda cycle, i: cycle < 1000)
    lost = (spent[-1] - spent[1000]) - (1 + EARN) * (tokens[-1] - tokens[1000])
    assert lost <= CAP + 1e-9


@pytest.mark.parametrize("bad", [64, 300])
def test_it_comes_back_from_plain_decoding(bad):
    measured = machine((1.3, 1.6, 2.0))
    depths, *_ = run(DepthChooser(measured, 3, False), measured, bad + 300, lambda cycle, i: cycle >= bad)
    assert depths[bad - 20 : bad].count(0) > 12
    assert depths[-50:] == [3] * 50 or set(depths[-50:]) <= {2, 3}
    assert 3 in depths[-50:]


def test_probes_back_off_while_nothing_is_kept():
    measured = machine(STEEP)
    depths, *_ = run(DepthChooser(measured, 3, False), measured, 1500, lambda cycle, i: False)
    drafted = [cycle for cycle, depth in enumerate(depths) if depth]
    assert len(drafted) < 60
    assert len([cycle for cycle in drafted if cycle >= 700]) > 0  # never given up for good


def test_it_does_not_flutter_between_depths_of_equal_worth():
    measured = machine((1.5, 2.0, 2.5))  # at a keep of 0.5 the first depth is worth exactly plain decoding
    chooser = DepthChooser(measured, 3, False)
    switches = []
    rng = np.random.default_rng(1)
    last = None
    for cycle in range(1000):
        depth = chooser.choose("head", 3)
        arm = chooser.arms["head"]
        if last is not None and arm.current != last:
            switches.append(cycle)
        last = arm.current
        kept = next((i for i in range(depth) if rng.random() > 0.5), depth)
        chooser.observe("head" if depth else None, depth, kept, 1.0)
    assert all(b - a > DWELL for a, b in itertools.pairwise(switches))
    assert len(switches) < 120


def test_without_live_times_equal_outcomes_give_equal_depths():
    measured = machine()
    noise = np.random.default_rng(5)
    runs = [
        run(
            DepthChooser(measured, 3, False),
            measured,
            500,
            chance((0.7, 0.5, 0.5)),
            seconds=lambda *_: noise.random(),
        )[0]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1


def test_live_times_move_the_depth():
    """Armed on an idle machine where drafts were nearly free, serving where they are dear."""
    measured = machine(FLAT)
    slow = lambda by, depth, took: took * (1 + 1.5 * depth)  # noqa: E731
    depths, *_ = run(DepthChooser(measured, 3, True), measured, 800, chance((0.6, 0.5, 0.5)), seconds=slow)
    assert depths[:1] == [3]
    assert depths[-100:].count(0) > 80


def test_one_outlier_does_not_move_a_cost():
    costs = Costs(machine(), True)
    before = costs.seconds("head", 2)
    costs.observe("head", 2, 1e6)
    assert before < costs.seconds("head", 2) < 1.1 * before
    frozen = Costs(machine(), False)
    frozen.observe("head", 2, 1e6)
    assert frozen.seconds("head", 2) == before


def test_sources_are_judged_apart():
    measured = machine(STEEP, copied=(1.1, 1.2, 1.3))
    source = lambda cycle: "copied" if cycle % 2 else "head"  # noqa: E731
    depths, *_ = run(DepthChooser(measured, 3, False), measured, 800, lambda cycle, i: cycle % 2 == 1, source)
    assert depths[-100::2].count(0) >= 40
    assert set(depths[-99::2]) == {3}


def test_a_head_too_dear_to_catch_up_stays_out_and_says_so():
    measured = machine(STEEP, read=0.5)
    chooser = DepthChooser(measured, 3, False)
    depths, *_ = run(chooser, measured, 300, lambda cycle, i: cycle > 100)
    assert set(depths[-100:]) == {0}
    assert chooser.stranded
    cheap = DepthChooser(machine(STEEP, read=EARN / 4), 3, False)
    depths, *_ = run(cheap, machine(STEEP, read=EARN / 4), 600, lambda cycle, i: cycle > 100)
    assert 3 in depths[-100:]
    assert not cheap.stranded


@pytest.mark.parametrize("room", [0, 1, 2])
def test_it_stays_within_the_room(room):
    depths, *_ = run(DepthChooser(machine(FLAT), 3, False), machine(FLAT), 60, lambda *_: True, room=room)
    assert max(depths) == room


def test_a_shallow_head_is_not_asked_for_more_than_it_can():
    measured = WidthCosts(1.0, {"head": (1.1,), "copied": FLAT})
    chooser = DepthChooser(measured, 3, False)
    depths, *_ = run(chooser, measured, 60, lambda *_: True, lambda cycle: ("head", "copied")[cycle % 2])
    assert set(depths[::2]) == {1}
    assert 3 in depths[1::2]


def test_deeper_positions_are_believed_to_be_like_the_one_before_until_seen():
    evidence = Evidence(3)
    assert evidence.keeps() == pytest.approx([PRIOR] * 3)
    for _ in range(200):
        evidence.record(1, 1)
    assert evidence.keeps()[0] > 0.93
    assert evidence.keeps()[2] > 0.93
    for _ in range(200):
        evidence.record(2, 1)
    assert evidence.keeps()[1] < 0.2
    for _ in range(2000):
        evidence.record(0, 0)
    assert evidence.keeps() == pytest.approx([PRIOR] * 3, abs=1e-3)
