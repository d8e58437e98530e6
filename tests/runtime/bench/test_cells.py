"""From words to cells: Hydra's grammar, the standard cells, and what is shared between them."""

import pytest

from mtrun.runtime import compose
from mtrun.runtime.bench.cells import RULE, cells_of, combinations, named_cells, side_cell, slug, standard_cells
from mtrun.runtime.errors import ConfigurationError

STANDARD = ["plain", "exact", "typical-0.2", "typical-pi-0.2", "tokenv3-0.75", "tokenv3-0.95"]
STANDARD += ["opt-0", "opt-0.25", "opt-0.5", "opt-0.75"]


def swept(*words: str) -> list[str]:
    return [cell.name for cell in cells_of(combinations(words, True)[0], [], True)]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("cascade.alpha=0.75,0.9,0.95", ["cascade.alpha-0.75", "cascade.alpha-0.9", "cascade.alpha-0.95"]),
        ("draft.depth=choice(1,3)", ["draft.depth-1", "draft.depth-3"]),
        ("draft.depth=range(1,4)", ["draft.depth-1", "draft.depth-2", "draft.depth-3"]),
        ("cascade.alpha=range(0.5,1,0.25)", ["cascade.alpha-0.5", "cascade.alpha-0.75"]),
        ("draft.depth=sort(3,1)", ["draft.depth-1", "draft.depth-3"]),
    ],
)
def test_a_sweep_is_written_in_hydras_grammar(word: str, names: list[str]) -> None:
    assert swept("pack=nano", word) == names


def test_every_combination_is_a_cell_of_all_words() -> None:
    jobs, _ = combinations(["draft.depth=1,2", "sampler.top_k=5,9", "pack=nano"], True)
    cells = cells_of(jobs, [], True)
    assert [cell.name for cell in cells] == [f"draft.depth-{d}_sampler.top_k-{k}" for d in (1, 2) for k in (5, 9)]
    assert cells[3].overrides == ("draft.depth=2", "sampler.top_k=9", "pack=nano")


def test_a_cascade_without_a_rule_is_measured_under_tokenv3_and_says_so() -> None:
    jobs, warnings = combinations(["acceptance=cascade", "cascade.alpha=0.75,0.9"], True)
    assert all(job[-1] == RULE for job in jobs)
    assert warnings == [f"cascade.rule is not given: {RULE} is measured"]
    assert compose(jobs[0]).config.cascade.rule.value == "tokenv3"
    for words in (
        ["acceptance=cascade", "cascade.rule=opt"],
        ["acceptance=exact"],
        ["acceptance=cascade", "profile=x"],
    ):
        assert combinations(words, True) == ([words], [])


@pytest.mark.parametrize("depth", [1, 3])
def test_standard_cells_compose_to_what_they_are_called(depth: int) -> None:
    cells = standard_cells(depth)
    assert [cell.name for cell in cells] == STANDARD
    for cell in cells:
        composed = compose(["pack=nano", *cell.overrides])
        law, _, number = cell.name.rpartition("-")
        config = composed.config
        assert config.draft.depth == (0 if cell.name == "plain" else depth)
        if law in ("tokenv3", "opt"):
            assert (config.acceptance.law.value, config.cascade.rule.value) == ("cascade", law)
            assert config.cascade.alpha == float(number)
        elif law.startswith("typical"):
            assert (config.acceptance.law.value, config.typical.threshold) == (law, float(number))
        else:
            assert config.acceptance.law.value == "exact"


def test_named_cells_take_what_chooses_no_law_and_their_own_words_win() -> None:
    words = ["acceptance=cascade", "cascade.rule=opt", "cascade.alpha=0.5,0.9", "pack=nano", "draft.depth=2"]
    found = cells_of(combinations(words, True)[0], named_cells("plain,exact", ["mine=draft.depth=1"], 3), True)
    assert [cell.name for cell in found] == ["plain", "exact", "mine", "cascade.alpha-0.5", "cascade.alpha-0.9"]
    assert found[0].overrides == ("pack=nano", "draft.depth=2", "profile=turbo", "draft.depth=0")
    assert compose(found[0].overrides).config.draft.depth == 0
    assert compose(found[3].overrides).config.cascade.alpha == 0.5


def test_without_a_sweep_words_belong_to_the_named_cells() -> None:
    found = cells_of(combinations(["pack=nano"], False)[0], named_cells("standard", [], 3), False)
    assert [cell.name for cell in found] == STANDARD
    with pytest.raises(ConfigurationError, match="add -m"):
        cells_of([["acceptance=exact"]], named_cells("plain", [], 3), False)


@pytest.mark.parametrize(
    ("picked", "described", "part"),
    [
        ("plane", [], "there is no cell 'plane'"),
        (None, ["no words"], "write --cell"),
        (None, ["../x=draft.depth=1"], "write --cell"),
        ("plain", ["plain=draft.depth=1"], "two cells are called plain"),
    ],
)
def test_a_cell_that_cannot_be_read_says_what_to_type(picked: str | None, described: list[str], part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        named_cells(picked, described, 3)


def test_names_are_safe_for_files_and_unique() -> None:
    assert slug(["pack=./some folder/x", "audit.require=[a,b]"]) == "pack-.-some-folder-x_audit.require-a-b"
    assert slug([]) == "default"
    long = [f"sampler.seed={'9' * 200}", f"sampler.seed={'9' * 201}"]
    assert len({slug([word]) for word in long}) == 2
    assert max(len(slug([word])) for word in long) < 100
    assert swept("sampler.temperature=1,'1'") == ["sampler.temperature-1", "sampler.temperature-1-2"]


def test_a_side_of_abab_is_a_standard_cell_or_words() -> None:
    assert side_cell("tokenv3-0.95", 2, "a").overrides[-1] == "draft.depth=2"
    assert side_cell("profile=turbo draft.depth=1", 3, "b").overrides == ("profile=turbo", "draft.depth=1")
    with pytest.raises(ConfigurationError, match="--b 'fast' cannot be read"):
        side_cell("fast", 3, "b")
