"""Which windows a plan has, and in what order they are measured."""

from collections import Counter

from benchmarks.cells import CELLS, WARM_UP, Plan, Side, Slot, prompts_of, schedule, warm_up

ARMED, DECLINED = Side("armed", (0, 1, 2, 3), 4), Side("declined", (0, 1), 1)
PLAN = Plan(CELLS, (ARMED, DECLINED), ("a", "b", "c", "d"), 8, ("pack=./x",))


def rounds(slots: list[Slot], side: str) -> list[list[str]]:
    found: dict[int, list[str]] = {}
    for slot in slots:
        if slot.side == side:
            found.setdefault(slot.round, []).append(slot.cell)
    return list(found.values())


def test_every_window_is_measured_once() -> None:
    slots = schedule(PLAN)
    assert len(slots) == len({slot.key for slot in slots}) == len(CELLS) * (4 * 4 + 2 * 1)


def test_a_round_holds_every_cell_side_by_side_and_the_order_alternates() -> None:
    found = rounds(schedule(PLAN), "armed")
    assert all(sorted(one) == sorted(cell.name for cell in CELLS) for one in found)
    assert all(even == odd[::-1] for even, odd in zip(found[::2], found[1::2], strict=True))
    assert len({one[0] for one in found[::2]}) == len(CELLS), "each cell leads in turn"


def test_no_cell_sits_earlier_in_its_rounds_than_another() -> None:
    found = rounds(schedule(PLAN), "armed")
    places = Counter()
    for one in found:
        for place, cell in enumerate(one):
            places[cell] += place
    assert max(places.values()) == min(places.values())


def test_the_shorter_side_is_spread_over_the_run() -> None:
    sides = [slot.side for slot in schedule(PLAN)]
    first = sides.index("declined") / len(sides)
    last = 1 - sides[::-1].index("declined") / len(sides)
    assert last - first > 0.4


def test_cells_share_the_request_seed_and_prompts_do_not() -> None:
    slots = schedule(PLAN)
    by_window = {
        (slot.seed, slot.prompt): {s.request_seed for s in slots if (s.seed, s.prompt) == (slot.seed, slot.prompt)}
        for slot in slots
    }
    assert all(len(seeds) == 1 for seeds in by_window.values())
    assert len(set.union(*by_window.values())) == len(by_window)


def test_a_side_with_few_windows_still_sees_different_prompts() -> None:
    assert [prompts_of(PLAN, DECLINED, position) for position in range(5)] == [[0], [1], [2], [3], [0]]
    armed = {slot.key[2:] for slot in schedule(PLAN) if slot.side == "armed"}
    declined = {slot.key[2:] for slot in schedule(PLAN) if slot.side == "declined"}
    assert declined <= armed


def test_sides_can_be_paired_when_a_seed_takes_only_some_of_the_prompts() -> None:
    """The lane's effect is measured on windows that both sides have."""
    plan = Plan(CELLS, (Side("armed", tuple(range(8)), 4), DECLINED), tuple("abcdefgh"), 8)
    for position in range(8):
        armed, declined = (set(prompts_of(plan, side, position)) for side in plan.sides)
        assert declined < armed
    assert len({prompts_of(plan, DECLINED, position)[0] for position in range(8)}) == 4
    assert {prompt for position in range(8) for prompt in prompts_of(plan, plan.sides[0], position)} == set(range(8))


def test_warm_up_runs_each_cell_once_outside_of_the_plan() -> None:
    slots = warm_up(PLAN, ARMED)
    assert [slot.cell for slot in slots] == [cell.name for cell in CELLS]
    assert {slot.round for slot in slots} == {WARM_UP}


def test_a_plan_survives_its_receipt() -> None:
    assert Plan.of_json(PLAN.to_json()) == PLAN
    side = ("lanes.cpu_blas=false", "lanes.cpu_layer=false")
    assert PLAN.words("declined", CELLS[0]) == (*CELLS[0].overrides, *side, "pack=./x")
