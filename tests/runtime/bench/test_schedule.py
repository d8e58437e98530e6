"""Which windows a plan has, and in what order they are measured."""

from collections import Counter
from itertools import groupby, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mtrun.runtime.bench.plan import PROMPT_LIMIT, Cell, Plan, Slot, prompts_of, schedule, warm_up


@st.composite
def plans(draw: st.DrawFn, kind: str | None = None) -> Plan:
    kind = kind or draw(st.sampled_from(["sweep", "ladder", "abab"]))
    count = 2 if kind == "abab" else draw(st.integers(1, 6))
    return Plan(
        kind=kind,
        cells=tuple(Cell(f"cell-{at}", "a cell", (f"draft.depth={at}",)) for at in range(count)),
        seeds=tuple(draw(st.lists(st.integers(0, 99), min_size=1, max_size=6, unique=True))),
        prompts=tuple(f"prompt {at}" for at in range(draw(st.integers(1, 5)))),
        per_seed=draw(st.integers(1, 6)),
        rounds=draw(st.integers(1, 3)),
        tokens=8,
        contexts=tuple(sorted(draw(st.sets(st.integers(1, 9000), min_size=1, max_size=3)))) if kind == "ladder" else (),
    )


def groups(slots: list[Slot]) -> list[list[str]]:
    """Cells of each (seed, context, prompt, round), in their order."""
    place = [((slot.seed, slot.context, slot.prompt, slot.round), slot.cell) for slot in slots]
    return [[cell for _, cell in found] for _, found in groupby(place, key=lambda one: one[0])]


@settings(deadline=None)
@given(plans())
def test_every_window_is_planned_once_under_a_name_of_its_own(plan: Plan) -> None:
    slots = schedule(plan)
    per_seed = min(plan.per_seed, len(plan.prompts))
    expected = len(plan.cells) * len(plan.seeds) * per_seed * plan.rounds * max(len(plan.contexts), 1)
    everything = [*slots, *warm_up(plan, 0), *warm_up(plan, 1)]
    assert len(slots) == expected
    assert len({slot.file for slot in everything}) == len(everything)
    assert all(slot.round < 0 for slot in warm_up(plan, 3))


@settings(deadline=None)
@given(plans())
def test_all_cells_of_a_group_are_measured_side_by_side(plan: Plan) -> None:
    names = sorted(cell.name for cell in plan.cells)
    found = groups(schedule(plan))
    assert all(sorted(group) == names for group in found)
    assert len(found) * len(names) == len(schedule(plan))


@settings(deadline=None)
@given(plans())
def test_the_request_seed_is_a_function_of_seed_and_prompt_alone(plan: Plan) -> None:
    by_place: dict[tuple[int, int], set[int]] = {}
    for slot in schedule(plan):
        by_place.setdefault((slot.seed, slot.prompt), set()).add(slot.request_seed)
    assert all(len(seeds) == 1 for seeds in by_place.values())
    assert len(set.union(*by_place.values())) == len(by_place)


@settings(deadline=None)
@given(plans("abab"))
def test_two_compared_cells_take_turns_to_start(plan: Plan) -> None:
    starters = [group[0] for group in groups(schedule(plan))]
    assert all(one != other for one, other in pairwise(starters))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4))
def test_over_whole_turns_no_cell_sits_earlier_than_another(cells: int, turns: int) -> None:
    plan = Plan(
        kind="sweep",
        cells=tuple(Cell(f"cell-{at}", "", ()) for at in range(cells)),
        seeds=tuple(range(2 * cells * turns)),
        prompts=("one",),
        per_seed=1,
        rounds=1,
        tokens=8,
    )
    found, places = groups(schedule(plan)), Counter()
    for group in found:
        places.update({cell: place for place, cell in enumerate(group)})
    assert len({places[cell.name] for cell in plan.cells}) == 1
    assert all(even == odd[::-1] for even, odd in zip(found[::2], found[1::2], strict=True))
    assert {group[0] for group in found[::2]} == {cell.name for cell in plan.cells}, "each cell leads in turn"


@settings(deadline=None)
@given(plans())
def test_a_plan_survives_its_file(plan: Plan) -> None:
    assert Plan.of_json(plan.to_json()) == plan


@settings(deadline=None)
@given(plans())
def test_seeds_move_on_through_the_prompts(plan: Plan) -> None:
    chosen = [prompts_of(plan, position) for position in range(len(plan.prompts))]
    assert all(len(set(one)) == len(one) == min(plan.per_seed, len(plan.prompts)) for one in chosen)
    assert {prompt for one in chosen for prompt in one} == set(range(len(plan.prompts)))


def test_seeds_do_not_collide_below_the_limit_of_prompts() -> None:
    assert Slot("a", 0, PROMPT_LIMIT - 1, 0).request_seed < Slot("a", 1, 0, 0).request_seed
