"""The packs that ship with mtrun: whole, small, found by name, and right about what they were made for."""

import pytest
from click.testing import CliRunner

from mtrun.runtime import Engine, compose
from mtrun.runtime.cli.pack import pack
from mtrun.runtime.errors import PackError
from mtrun.runtime.forge.tasks import catalogue
from mtrun.runtime.packs.cache import PackCache
from mtrun.runtime.packs.embedded import embedded_packs
from mtrun.runtime.packs.fetch import Fetcher
from mtrun.runtime.packs.hub import resolve
from mtrun.runtime.packs.inspect import verify
from mtrun.runtime.packs.reader import describe

LARGEST = 8_000_000  # bytes of a pack that every clone carries


def test_nano_ships_and_is_found_by_name(tmp_path):
    folder = resolve("nano", Fetcher(PackCache(tmp_path / "cache")))
    assert folder == embedded_packs()["nano"]
    assert describe(folder).head.ok


@pytest.mark.parametrize("name", sorted(embedded_packs()))
def test_an_embedded_pack_is_whole_and_small(name):
    folder = embedded_packs()[name]
    assert verify(folder) == []
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < LARGEST


def test_a_pack_that_was_not_fetched_names_one_that_needs_no_network(tmp_path):
    with pytest.raises(PackError, match=r"mtrun pack fetch smollm2, or pack=nano"):
        resolve("smollm2", Fetcher(PackCache(tmp_path / "cache")))


def test_fetching_an_embedded_pack_has_nothing_to_do():
    done = CliRunner().invoke(pack, ["fetch", "nano"])
    assert (done.exit_code, done.output.strip()) == (0, str(embedded_packs()["nano"]))
    assert "nano" in CliRunner().invoke(pack, ["list"]).output


def test_nano_answers_held_out_tasks_greedily():
    """Greedy decoding of a few held-out tasks of each family: most are right, as its card says of sampled ones."""
    tasks = catalogue.held_set()[:30]
    with Engine(compose(["pack=nano", "lanes.cpu_blas=false"])) as engine:
        answers = [
            engine.generate([{"role": "user", "content": task.prompt}], max_tokens=200, temperature=0.0).text
            for task in tasks
        ]
    right = sum(catalogue.check(task, answer).ok for task, answer in zip(tasks, answers, strict=True))
    assert right >= 0.7 * len(tasks)
