"""The proofs of native drafts, rows and judgements, each beside faults that it has to catch."""

from dataclasses import replace

import numpy as np
import pytest

from mtrun.kernels.draft import DraftLogits
from mtrun.kernels.rows import Rows
from mtrun.lanes.catalogue import load
from support.native_parts import NAMES, install_native, needs_library, prove

pytestmark = needs_library
LANES = load(NAMES)


def test_drafts_scored_in_8_bits_while_rows_are_in_4_are_seen_by_the_chains_proof(parts):
    """`draft_chain` compares the head's own scorer with the one that `frspec` took from the trunk."""
    installed = install_native(parts, "cpu_layer", "cpu_head_q4", "frspec", "draft_prescatter", "draft_chain")
    assert prove(parts, "draft_chain", installed["draft_chain"]).ok
    parts.head.scorer = installed["cpu_head_q4"].before.scorer
    assert not prove(parts, "draft_chain", installed["draft_chain"]).ok


# Chains


def drawn_from_another_row(hot, head):
    def chain(state, caches, depth, how, uniforms):
        made = hot(state, caches, depth, how, uniforms)
        ids = None if made.rows.ids is None else np.roll(made.rows.ids, 1, axis=0)
        return replace(made, rows=Rows(ids, np.roll(made.rows.probs, 1, axis=0)))

    return chain


def uniforms_in_another_order(hot, head):
    return lambda state, caches, depth, how, uniforms: hot(state, caches, depth, how, uniforms[::-1].copy())


def uniforms_ignored(hot, head):
    return lambda state, caches, depth, how, uniforms: hot(state, caches, depth, how, np.full(depth, 0.5))


def one_cache_row_more(hot, head):
    def chain(state, caches, depth, how, uniforms):
        made = hot(state, caches, depth, how, uniforms)
        head.forward(state[None, None], state[None, None], caches, depth)
        return made

    return chain


def one_cache_row_less(hot, head):
    def chain(state, caches, depth, how, uniforms):
        made = hot(state, caches, depth, how, uniforms)
        caches[0].trim(1)
        return made

    return chain


def verified_rows_overwritten(hot, head):
    def chain(state, caches, depth, how, uniforms):
        made = hot(state, caches, depth, how, uniforms)
        caches[0].trim(depth)
        for _ in range(depth):
            head.forward(state[None, None], state[None, None], caches, depth)
        return made

    return chain


def state_of_the_first_step_only(hot, head):
    """Every draft from the row of the first: the chain's own tokens are not fed back."""

    def chain(state, caches, depth, how, uniforms):
        parts = [hot(state, caches, 1, how, uniforms[i : i + 1]) for i in range(depth)]
        for _ in range(depth - 1):
            head.forward(state[None, None], state[None, None], caches, depth)
        ids = None if parts[0].rows.ids is None else np.concatenate([each.rows.ids for each in parts])
        rows = Rows(ids, np.concatenate([each.rows.probs for each in parts]))
        return replace(parts[0], tokens=np.concatenate([each.tokens for each in parts]), rows=rows)

    return chain


def temperature_dropped(hot, head):
    return lambda state, caches, depth, how, uniforms: hot(
        state, caches, depth, how if how.greedy else replace(how, temperature=1.0), uniforms
    )


def top_p_dropped(hot, head):
    return lambda state, caches, depth, how, uniforms: hot(state, caches, depth, replace(how, top_p=1.0), uniforms)


def min_p_dropped(hot, head):
    return lambda state, caches, depth, how, uniforms: hot(state, caches, depth, replace(how, min_p=0.0), uniforms)


def tokens_named_by_slot(hot, head):
    def chain(state, caches, depth, how, uniforms):
        made = hot(state, caches, depth, how, uniforms)
        return replace(made, tokens=(made.tokens + 1) % 384)

    return chain


CHAIN_FAULTS = (
    uniforms_ignored,
    one_cache_row_more,
    one_cache_row_less,
    verified_rows_overwritten,
    temperature_dropped,
    top_p_dropped,
    min_p_dropped,
    tokens_named_by_slot,
)
BELOW = (drawn_from_another_row, uniforms_in_another_order, state_of_the_first_step_only)  # a chain of one has no other


@pytest.mark.parametrize(
    ("depth", "fault"), [*((1, f) for f in CHAIN_FAULTS), *((3, f) for f in (*CHAIN_FAULTS, *BELOW))]
)
def test_a_sabotaged_chain_fails_its_proof(either, fault, depth):
    install_native(either, "cpu_layer", "frspec", "draft_prescatter")
    installed = install_native(either, "draft_chain", depth=depth)["draft_chain"]
    proof = prove(either, "draft_chain", replace(installed, hot=fault(installed.hot, either.head)), depth=depth)
    assert not proof.ok
    assert proof.reason.endswith(".")


@pytest.mark.parametrize("ranked", [False, True])
def test_a_chain_over_another_vocabulary_than_the_scorer_fails_its_proof(either, ranked):
    install_native(either, "cpu_layer", *(["frspec", "draft_prescatter"] if ranked else []))
    installed = install_native(either, "draft_chain")["draft_chain"]
    assert prove(either, "draft_chain", installed).ok
    if ranked:
        either.draft_scorer = lambda state: DraftLogits(either.trunk.project(state), None)
    else:
        install_native(either, "frspec", "draft_prescatter")
    assert not prove(either, "draft_chain", installed).ok


# Row kernels


def ties_by_higher_id(hot):
    """Reads the row backwards, so that of equal logits the higher id comes first."""

    def rows(logits, how):
        made, last = hot(logits[:, ::-1], how), logits.shape[-1] - 1
        if made.ids is None:
            return Rows(None, made.probs[:, ::-1])
        return Rows((last - made.ids)[:, ::-1], made.probs[:, ::-1])

    return rows


def stride_ignored(hot):
    """Takes rows for contiguous that lie in wider ones."""

    def rows(logits, how):
        count, vocab = logits.shape
        flat = (logits if logits.base is None else logits.base).reshape(-1)
        return hot(flat[: count * vocab].reshape(count, vocab), how)

    return rows


def renormalised_wrongly(hot):
    return lambda logits, how: (lambda made: Rows(made.ids, made.probs * 0.999))(hot(logits, how))


def support_of_one_less(hot):
    return lambda logits, how: hot(logits, replace(how, top_k=how.top_k - 1) if how.top_k > 1 else how)


def widened(field, value):
    def fault(hot):
        return lambda logits, how: hot(logits, how if how.greedy else replace(how, **{field: value}))

    fault.__name__ = f"{field} of {value}"
    return fault


def nans(hot):
    return lambda logits, how: (lambda made: Rows(made.ids, made.probs * np.nan))(hot(logits, how))


ROW_FAULTS = (
    ties_by_higher_id,
    stride_ignored,
    renormalised_wrongly,
    support_of_one_less,
    widened("temperature", 1.0),
    widened("top_p", 1.0),
    widened("min_p", 0.0),
    widened("top_p", 0.94),
    nans,
)


@pytest.mark.parametrize("fault", ROW_FAULTS, ids=lambda fault: fault.__name__)
def test_a_sabotaged_row_kernel_fails_its_proof(parts, fault):
    install_native(parts, "cpu_layer")
    installed = install_native(parts, "row_kernel")["row_kernel"]
    proof = prove(parts, "row_kernel", replace(installed, hot=fault(installed.hot)))
    assert not proof.ok
    assert proof.reason.endswith(".")


# Judges


def other_token(hot):
    return lambda cycle: (lambda made: replace(made, token=(made.token + 1) % 384))(hot(cycle))


def one_keep_less(hot):
    return lambda cycle: (lambda made: replace(made, kept=max(made.kept - 1, 0)))(hot(cycle))


def rows_turned(hot):
    return lambda cycle: hot(replace(cycle, logits=np.roll(cycle.logits, 1, axis=0)))


def residual_from_the_bonus_uniform(hot):
    return lambda cycle: hot(replace(cycle, residual_uniform=cycle.bonus_uniform))


def bonus_from_the_residual_uniform(hot):
    return lambda cycle: hot(replace(cycle, bonus_uniform=cycle.residual_uniform))


def divergence_not_measured(hot):
    return lambda cycle: (lambda made: replace(made, divergence=[0.0] * cycle.depth))(hot(cycle))


def deferral_not_counted(hot):
    return lambda cycle: replace(hot(cycle), deferred=[False] * cycle.depth)


JUDGE_FAULTS = (
    other_token,
    one_keep_less,
    rows_turned,
    residual_from_the_bonus_uniform,
    bonus_from_the_residual_uniform,
    divergence_not_measured,
    deferral_not_counted,
)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("fault", JUDGE_FAULTS)
def test_a_sabotaged_judge_fails_its_proof(parts, fault, depth):
    install_native(parts, "cpu_layer", "row_kernel")
    installed = install_native(parts, "judge_kernel", depth=depth)["judge_kernel"]
    proof = prove(parts, "judge_kernel", replace(installed, hot=fault(installed.hot)), depth=depth)
    assert not proof.ok
    assert proof.reason.endswith(".")
