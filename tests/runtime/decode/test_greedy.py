"""Greedy drafting changes nothing: every depth, drafter and cache kind gives plain decoding's tokens."""

import itertools

import pytest

from support.tiny_parts import (
    adversarial,
    decoder,
    events,
    finished,
    install,
    noisy,
    perfect,
    request,
    tiny_parts,
    tokens,
    with_drafter,
)

LENGTH, MARGIN = 300, 6  # the known reply reaches past the tokens asked for by more than the deepest draft
VOCAB = 24
PROMPTS = ([1, 2, 3], [7], [5, 5, 5, 5], list(range(24)), [23, 0, 11, 4, 9], [2, 13] * 20)
DEPTHS = (1, 2, 3, 4, 5)
ROTATED = tuple(zip(range(6), (5, 4, 3, 2, 1, 5), strict=True))  # (prompt, depth): each of both at least once
PACKS = {
    "tied": {"seed": 16, "layers": 2, "hidden": 16, "scale": 0.3},
    "untied": {"seed": 1, "layers": 1, "hidden": 16, "tied": False},
    "sliding": {"seed": 1, "layers": 2, "hidden": 16, "tied": False, "sliding_window": 16},
}
LANES = ("frspec", "draft_prescatter", "block_verify", "batched_target_rows")


class Case:
    """One pack and what plain decoding says to each prompt."""

    def __init__(self, folder, name):
        self.parts = tiny_parts(folder, vocab=VOCAB, draft_vocab=16, **PACKS[name])
        self.index = list(PACKS).index(name)
        self.replies = [self.run(self.parts, 0, i, LENGTH + MARGIN)[0] for i in range(len(PROMPTS))]

    def share(self, shift):
        """A third of ROTATED; the packs together cover it all."""
        return ROTATED[(self.index + shift) % 3 :: 3]

    def run(self, parts, depth, prompt, length=LENGTH, **sampling):
        asked = request(PROMPTS[prompt], temperature=0.0, max_tokens=length, **sampling)
        made = events(decoder(parts, depth), asked)
        return tokens(made), finished(made).counts

    def same(self, parts, depth, prompt):
        got, counts = self.run(parts, depth, prompt)
        assert got == self.replies[prompt][:LENGTH], f"prompt {prompt} at depth {depth}"
        assert counts.identities() == []
        return counts


@pytest.fixture(scope="module", params=list(PACKS))
def case(request, tmp_path_factory):
    return Case(tmp_path_factory.mktemp(request.param), request.param)


def test_the_replies_are_no_short_loops(case):
    assert max(len(set(itertools.pairwise(reply))) for reply in case.replies) > 20


def test_a_perfect_drafter_has_every_draft_kept(case):
    everything = tuple(itertools.product(range(len(PROMPTS)), DEPTHS))
    for prompt, depth in everything if case.index == 0 else case.share(0):
        reply = case.replies[prompt]
        counts = case.same(with_drafter(case.parts, perfect(PROMPTS[prompt], reply)), depth, prompt)
        assert counts.drafted == counts.accepted > 0
        assert counts.cycles == -(-(LENGTH - 1) // (depth + 1))


def test_an_adversarial_drafter_has_none_kept(case):
    for prompt, depth in case.share(0):
        drafter = adversarial(PROMPTS[prompt], case.replies[prompt], VOCAB)
        counts = case.same(with_drafter(case.parts, drafter), depth, prompt)
        assert counts.accepted == 0
        assert counts.cycles == LENGTH - 1


def test_a_noisy_drafter_ends_cycles_everywhere(case):
    for prompt, depth in ROTATED:
        drafter = noisy(PROMPTS[prompt], case.replies[prompt], VOCAB)
        counts = case.same(with_drafter(case.parts, drafter), depth, prompt)
        assert all(0 < kept < reached for kept, reached in zip(*by_depth(counts), strict=True))


def by_depth(counts):
    return counts.accepted_by_depth, counts.reached_by_depth


def test_the_packs_own_head(case):
    prompt, depth = case.share(1)[0]
    case.same(case.parts, depth, prompt)


def test_all_exact_lanes_at_once(case):
    installed = install(case.parts, *LANES)
    try:
        for prompt, depth in case.share(2):
            drafter = noisy(PROMPTS[prompt], case.replies[prompt], VOCAB)
            case.same(with_drafter(case.parts, drafter), depth, prompt)
        prompt, depth = case.share(1)[1]
        case.same(case.parts, depth, prompt)
    finally:
        for each in reversed(installed.values()):
            each.undo()


ADJUSTED = (
    {"repetition_penalty": 1.3, "frequency_penalty": 0.3},
    {"presence_penalty": 1.0, "frequency_penalty": -0.05, "logit_bias": {4: 1.5}},
)


@pytest.mark.parametrize("adjusted", ADJUSTED)
@pytest.mark.parametrize("batched", [False, True])
def test_penalties_and_bias_see_the_accepted_drafts(case, adjusted, batched):
    length = 80
    parts = case.parts
    reply, _ = case.run(parts, 0, 0, length + MARGIN, **adjusted)
    assert reply != case.replies[0][: length + MARGIN], "the adjustment must matter for the test to mean anything"
    installed = install(parts, "batched_target_rows") if batched else {}
    try:
        for depth in (2, 5):
            drafted = with_drafter(parts, noisy(PROMPTS[0], reply, VOCAB))
            got, counts = case.run(drafted, depth, 0, length, **adjusted)
            assert got == reply[:length]
            assert counts.accepted > 0
        assert case.run(parts, 3, 0, 40, **adjusted)[0] == reply[:40]
    finally:
        for each in installed.values():
            each.undo()


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 1.0}])
def test_a_token_biased_away_never_appears_at_any_position(case, how):
    free = tokens(events(decoder(case.parts, 5), request(PROMPTS[0], max_tokens=40, **how)))
    banned = max(set(free), key=free.count)
    stubborn = with_drafter(case.parts, lambda text, depth: [banned] * depth)
    for parts in (case.parts, stubborn):
        asked = request(PROMPTS[0], max_tokens=40, logit_bias={banned: -100.0}, **how)
        assert banned not in tokens(events(decoder(parts, 5), asked))
