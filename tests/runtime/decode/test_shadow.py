"""Shadow laws: what they say is each law's own closed form on the visited rows, and nobody notices that they watch."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.native.library import library_path
from mtrun.kernels.rows import filter_rows
from mtrun.runtime import compose
from mtrun.runtime.acceptance.law import Block
from mtrun.runtime.acceptance.table import build_law
from mtrun.runtime.decode.shadow import JOINT, VALIDITY, form_of, watch
from mtrun.runtime.decode.verify import VerifyCycle, row_by_row
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.generator import MtpGenerator
from mtrun.runtime.preparation import prepare
from mtrun.runtime.requests import Chunk, Finished, GenerationRequest, Sampling
from support.host_parts import host_parts
from support.laws import LAWS
from support.table_parts import table_parts, tables
from support.tiny_parts import decoder, events, finished, install, request, tiny_parts, tokens

PROMPT = (0, 3)
SEEN = fields(VerifyCycle)  # what a verifier is given
FILTERS = ({"top_k": 4, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.8})
LANES = {"stock": (), "batched": ("frspec", "batched_target_rows"), "block": ("block_verify", "batched_target_rows")}
SWEEP = {
    "exact": build_law("exact"),
    "opt": build_law("cascade", rule="opt", alpha=0.5),
    "tokenv2": build_law("cascade", rule="tokenv2", alpha=0.3),
    "tokenv3": build_law("cascade", rule="tokenv3", alpha=0.75),
    "typical": build_law("typical", threshold=0.2),
    "typical-pi": build_law("typical-pi", threshold=0.2),
    "synthetic": build_law("synthetic", rate=0.6),
}
WORDS = {
    "opt": ("acceptance=cascade", "cascade.rule=opt", "cascade.alpha=0.5"),
    "tokenv3": ("acceptance=cascade", "cascade.rule=tokenv3", "cascade.alpha=0.75"),
    "typical-pi": ("acceptance=typical-pi", "typical.threshold=0.2"),
    "synthetic": ("acceptance=synthetic", "synthetic.rate=0.6"),
}


def small(law=None, xp=mx):
    target, draft = tables(9, seed=2)
    return table_parts(target, draft, law, mx.array([0, 1, 2, 4, 6, 7], dtype=mx.int32), xp)


def decoded(parts, depth=3, length=60, **asked):
    made = events(decoder(parts, depth, context=4096), request(PROMPT, max_tokens=length, **asked))
    return tokens(made), vars(finished(made).counts)


@pytest.mark.parametrize("law", SWEEP.values(), ids=SWEEP)
@pytest.mark.parametrize("xp", [mx, np], ids=["mlx", "numpy"])
def test_a_form_decides_each_position_as_its_law_does(law, xp):
    """Every slot drafted in turn, at random coins, against `judge` of that one position."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        p, q = rng.dirichlet(np.full(6, 0.6), 2)
        p[rng.integers(6)] = 0
        p /= p.sum()
        for slot in range(6):
            rows = (p[None], q[None], np.array([slot], dtype=np.int32), rng.random(1))
            judged = law.judge(Block(*(xp.array(one) for one in rows)))
            form = form_of(law, Block(*rows))
            assert int(judged.kept.item()) == int(rows[3][0] < form.keep[0])
            assert bool(judged.deferred[0].item()) == bool(form.deferred[0])


@pytest.mark.parametrize("law", SWEEP.values(), ids=SWEEP)
def test_the_emitted_law_of_a_form_is_what_keeps_and_replacements_add_up_to(law):
    rng = np.random.default_rng(6)
    for p, q in rng.dirichlet(np.full(5, 0.7), (30, 2)):
        emitted = np.zeros(5)
        for slot in range(5):
            block = Block(p[None], q[None], np.array([slot]), np.array([1 - 2.0**-53]))
            keep, weights = form_of(law, block).keep[0], law.judge(block).replacement[0]
            emitted += q[slot] * (1 - keep) * weights / weights.sum()
            emitted[slot] += q[slot] * keep
        assert form_of(law, block).emitted[0] == pytest.approx(emitted, abs=1e-12)


@pytest.mark.parametrize("lanes", LANES.values(), ids=LANES)
@pytest.mark.parametrize("xp", [mx, np], ids=["mlx", "numpy"])
def test_nobody_notices_that_shadows_watch(lanes, xp):
    for asked in (*FILTERS, {}, {"temperature": 0.0}):
        parts = small(xp=xp)
        installed = install(parts, *lanes)
        before, verify = decoded(parts, **asked), parts.verify
        hits = [one.latch.count for one in installed.values()]
        for one in installed.values():
            one.latch.reset()
        shadow = watch(parts, SWEEP)
        assert decoded(parts, **asked) == before
        assert [one.latch.count for one in installed.values()] == hits
        assert (shadow.report()["tokenv3"]["positions"] > 0) == ("temperature" not in asked or asked["temperature"] > 0)
        shadow.undo()
        assert parts.verify is verify


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("asked", FILTERS, ids=["compact", "dense"])
def test_the_shadow_of_the_deciding_law_saw_its_every_decision(law, asked):
    parts = small(law)
    shadow = watch(parts, {"itself": law})
    _, counts = decoded(parts, length=160, **asked)
    found = shadow.report()["itself"]
    assert found["positions"] == counts["positions"] > 60
    assert (found["kept"], found["deferred"]) == (counts["accepted"], counts["deferred"])
    assert [one["positions"] for one in found["per_depth"]] == counts["reached_by_depth"]
    assert sum(one["expected_keep"] for one in found["per_depth"]) == pytest.approx(found["expected_keep"])
    assert (found["validity"], found["law"], found["rule"]) == (VALIDITY, law.name, law.rule)
    band = math.sqrt(found["positions"] * math.log(2 / 1e-6) / 2)
    assert abs(counts["accepted"] - found["expected_keep"]) <= band
    if law.name == "exact":
        assert found["emitted_divergence"] == 0


def test_a_predicted_rate_is_the_law_s_closed_form_on_the_very_rows():
    """Rows noted beside the run, and each law's rate at them from the definitions, with plain numbers."""
    parts, rows = small(), []
    stock = parts.verify

    def noting(cycle):
        outcome = stock(cycle)
        if cycle.depth:
            block = cycle.block()
            p, q, at = np.array(block.p), np.array(block.q), np.array(block.drafted)
            rows.extend((p[i], q[i], at[i]) for i in range(min(outcome.kept + 1, cycle.depth)))
        return outcome

    parts.verify = noting
    shadow = watch(parts, SWEEP)
    decoded(parts, **FILTERS[0])
    for name, record in shadow.report().items():
        keeps = [plain_keep(name, SWEEP[name].parameters, *row) for row in rows]
        assert len(keeps) == record["positions"] > 30
        assert record["expected_keep"] == pytest.approx(sum(keeps), rel=1e-9)
        assert record["keep_rate_predicted"] == pytest.approx(sum(keeps) / len(keeps), rel=1e-9)


def plain_keep(name, knobs, p, q, v):
    """Section 2 of the definitions, one token at a time."""
    peak, share = max(p), min(1.0, p[v] / q[v])
    entropy = -sum(x * math.log(x) for x in p if x > 0)
    if name in ("exact", "synthetic"):
        return share if name == "exact" else knobs["rate"]
    if name == "opt":
        gap = sum(max(0.0, a - b) for a, b in zip(p, q, strict=True))
        return share if max(q) < peak - knobs["alpha"] * gap else 1.0
    if name == "tokenv2":
        kept = [x >= peak - knobs["alpha"] and x > 0 for x in p]
    elif name == "tokenv3":
        kept = [x >= (1 - knobs["alpha"]) * peak for x in p]
    else:
        kept = [x > min(1.0, knobs["threshold"] * math.exp(-entropy)) for x in p]
    if kept[v]:
        return 1.0
    eta = sum(b for b, inside in zip(q, kept, strict=True) if not inside)
    return 0.0 if name == "typical" else min(1.0, eta * p[v] / q[v])


def test_numpy_and_mlx_rows_of_one_model_predict_the_same(tmp_path):
    parts = tiny_parts(tmp_path, vocab=384, layers=1, scale=0.6, seed=3)
    reports = []
    for each in (parts, host_parts(parts)):
        each = replace(each)
        shadow = watch(each, SWEEP)
        decoded(each, length=60, top_k=20, top_p=0.95)
        reports.append(shadow.report())
    for name, record in reports[0].items():
        assert reports[1][name]["positions"] == record["positions"]
        assert reports[1][name]["expected_keep"] == pytest.approx(record["expected_keep"], rel=1e-4)


def test_a_joint_law_is_predicted_by_its_rate_at_one_position_and_said_to_choose_its_prefixes():
    parts = small()
    install(parts, "block_verify")
    shadow = watch(parts, {"block": parts.law, "exact": build_law("exact")})
    decoded(parts, depth=1)
    found = shadow.report()
    assert {**found["block"], "rule": None} == found["exact"]
    assert found["block"]["validity"] == VALIDITY
    decoded(parts, depth=3)
    assert JOINT in shadow.report()["exact"]["validity"]
    shadow.reset()
    assert shadow.report()["exact"]["positions"] == 0
    assert shadow.report()["exact"]["keep_rate_predicted"] is None


def test_shadows_read_the_rows_that_decided():
    """A lane may filter rows in its own way: here at another temperature, which the reference would not do."""
    parts = small()
    parts.target_rows = lambda logits, how: filter_rows(logits, replace(how, temperature=0.3))
    shadow = watch(parts, {"itself": parts.law})
    _, counts = decoded(parts, length=200, **FILTERS[0])
    found = shadow.report()["itself"]
    assert (found["kept"], found["positions"]) == (counts["accepted"], counts["positions"])


def test_rows_that_a_verifier_makes_out_of_sight_are_filtered_by_the_reference():
    reports = []
    for verify in (row_by_row, lambda cycle: row_by_row(VerifyCycle(**{f.name: getattr(cycle, f.name) for f in SEEN}))):
        parts = small()
        parts.verify = verify
        shadow = watch(parts, SWEEP)
        decoded(parts, **FILTERS[0])
        reports.append(shadow.report())
    assert reports[0]["tokenv3"]["positions"] > 30
    assert reports[0] == reports[1]


def test_a_law_without_a_closed_form_is_refused_and_a_foreign_verifier_kept():
    parts = small()
    with pytest.raises(ConfigurationError, match="no closed form"):
        watch(parts, {"other": replace(build_law("cascade", rule="opt", alpha=0.1), rule="tokenv9")})
    shadow, other = watch(parts, SWEEP), lambda cycle: None
    parts.verify, watching = other, parts.verify
    with pytest.raises(RuntimeError, match="undo that first"):
        shadow.undo()
    assert parts.verify is other
    parts.verify = watching
    shadow.undo()


PROMPTS = ("What is 17 plus 25?", "Sort the list [4, 1, 3].", "Write a function that adds two numbers.")
SEEDS = range(6)


def nano(*words):
    generator = MtpGenerator(prepare(compose(["pack=nano", "draft.depth=1", "profile=turbo", *words])))
    generator.load()
    return generator


def windows(generator):
    """(ids, accepted, positions) of every prompt and seed."""
    found, run = [], generator.prepared
    for text in PROMPTS:
        ids = tuple(run.tokenizer.encode_chat([{"role": "user", "content": text}]))
        for seed in SEEDS:
            asked = GenerationRequest("test", ids, Sampling(top_p=0.95, top_k=20, seed=seed), 64, ignore_eos=True)
            made = list(generator.run(asked, lambda: False))
            assert isinstance(made[-1], Finished)
            text_ids = tuple(one for event in made if isinstance(event, Chunk) for one in event.token_ids)
            found.append((text_ids, made[-1].counts.accepted, made[-1].counts.positions))
    return found


def test_one_exact_run_of_nano_predicts_the_measured_sweep_at_depth_1():
    """All armed lanes decide, native ones where they are built. The other law's text is another sample of prefixes, so
    both sides carry sampling noise: the band is that of two independent rates, four standard errors wide."""

    def work():
        base = nano()
        plain = windows(base)
        engaged = {one.lane: one.engaged_count for one in base.registry.verdicts()}
        base.registry.start_serving()
        shadow = watch(base.decoder.parts, {name: SWEEP[name] for name in WORDS} | {"exact": SWEEP["exact"]})
        assert windows(base) == plain
        assert {one.lane: one.engaged_count for one in base.registry.verdicts()} == engaged
        report = shadow.report()
        shadow.undo()
        measured = {"exact": plain}
        for name, words in WORDS.items():
            other = base.variant(prepare(compose(["pack=nano", "draft.depth=1", "profile=turbo", *words])))
            measured[name] = windows(other)
            other.close()
        assert base.decoder.parts.verify is shadow.deciding
        base.close()
        return report, measured, engaged

    with ThreadPoolExecutor(1) as pool:
        report, measured, engaged = pool.submit(work).result()
    if library_path() is not None:
        assert engaged["judge_kernel"] > 0
    for name, found in measured.items():
        kept, positions = (sum(one[at] for one in found) for at in (1, 2))
        rate, predicted = kept / positions, report[name]["keep_rate_predicted"]
        error = math.sqrt(rate * (1 - rate) * (1 / positions + 1 / report[name]["positions"]))
        assert abs(rate - predicted) < 4 * error, (name, rate, predicted)
    assert report["exact"]["kept"] == sum(one[1] for one in measured["exact"])
