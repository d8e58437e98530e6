"""Digests of code: blind to wording, sharp on operators, and stated in every setting."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mtrun.kernels.native.library import library_path
from mtrun.lanes.catalogue import LANE_NAMES
from mtrun.runtime import compose
from mtrun.runtime.acceptance.table import LAWS
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.generator import MtpGenerator
from mtrun.runtime.measure.code import root
from mtrun.runtime.measure.provenance import (
    LAW_MODULES,
    lane_code,
    law_code,
    native_code,
    native_sources,
    sources_digest,
)
from mtrun.runtime.measure.setting import setting_of
from mtrun.runtime.preparation import prepare
from support.tiny_pack import write_tiny_pack


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the code that a test may edit."""
    for folder in ("lanes", "kernels", "runtime/acceptance"):
        shutil.copytree(root() / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) >= 1, old
    file.write_text(text.replace(old, new, 1))


def laws(folder: Path) -> dict[str, str]:
    return {law: law_code(law, folder) for law in LAW_MODULES}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_a_copy_of_the_code_is_the_code_that_runs(sources: Path) -> None:
    assert set(LAW_MODULES) == set(LAWS)
    assert laws(sources) == {law: law_code(law) for law in LAW_MODULES}
    assert {lane: lane_code(lane, sources) for lane in LANE_NAMES} == {lane: lane_code(lane) for lane in LANE_NAMES}
    assert len(set(laws(sources).values())) == len(set(LAW_MODULES.values()))  # typical-pi shares a module with typical


def test_wording_and_layout_are_not_code(sources: Path) -> None:
    before = laws(sources)
    file = sources / "runtime/acceptance/cascade.py"
    edit(file, '"""Eq. (13)', '"""In other words, Eq. (13)')
    edit(file, "    eta = xp.sum(", "    # A reason that nobody had given before.\n\n    eta = xp.sum(")
    edit(file, '"""Speculative cascades:', '"""Cascades:')
    edit(
        sources / "kernels/rows.py",
        "    def greedy(self) -> bool:\n",
        '    def greedy(self) -> bool:\n        """Cold."""\n',
    )
    edit(sources / "kernels/rows.py", "how.temperature != 1.0", "(how.temperature != 1.0)")
    assert laws(sources) == before


@pytest.mark.parametrize(
    ("file", "old", "new", "touched"),
    [
        ("runtime/acceptance/exact.py", "coins < keep", "coins <= keep", {"exact", "cascade", "typical", "typical-pi"}),
        (
            "runtime/acceptance/cascade.py",
            "(1 - alpha) * _peak",
            "(1 + alpha) * _peak",
            {"cascade", "typical", "typical-pi"},
        ),
        ("runtime/acceptance/typical.py", "return p > xp.minimum", "return p >= xp.minimum", {"typical", "typical-pi"}),
        ("runtime/acceptance/synthetic.py", "coins < self", "coins > self", {"synthetic"}),
        ("runtime/acceptance/align.py", "p - q, 0", "p - q, 1", set(LAW_MODULES)),
        ("kernels/rows.py", "before < how.top_p", "before <= how.top_p", set(LAW_MODULES)),
        ("kernels/arrays.py", "SEQUENTIAL = 256", "SEQUENTIAL = 255", set(LAW_MODULES)),
    ],
    ids=lambda value: Path(value).name if isinstance(value, str) and "/" in value else None,
)
def test_an_edited_operator_changes_the_laws_that_run_it(
    sources: Path, file: str, old: str, new: str, touched: set[str]
) -> None:
    before = laws(sources)
    edit(sources / file, old, new)
    assert changed(before, laws(sources)) == touched


@pytest.mark.parametrize(
    ("file", "old", "new", "lane", "other"),
    [
        ("lanes/frspec.py", "return Decision(", "return not Decision(", "frspec", "row_kernel"),
        ("kernels/block_verify.py", "coins < keep", "coins <= keep", "block_verify", "frspec"),
        ("kernels/native/judge.py", "4, ", "5, ", "judge_kernel", "block_verify"),
        ("kernels/metal/rows.metal", "+", "-", "row_kernel", "judge_kernel"),
        ("kernels/blas/forward.c", "(", "((", "cpu_blas", "frspec"),
    ],
    ids=lambda value: Path(value).name if isinstance(value, str) and "/" in value else None,
)
def test_an_edited_kernel_changes_the_lanes_that_import_it(
    sources: Path, file: str, old: str, new: str, lane: str, other: str
) -> None:
    before = {name: lane_code(name, sources) for name in (lane, other)}
    edit(sources / file, old, new)
    assert changed(before, {name: lane_code(name, sources) for name in (lane, other)}) == {lane}


def test_sentences_that_a_lane_says_are_code_and_its_contract_is_not(sources: Path) -> None:
    before = lane_code("frspec", sources)
    edit(sources / "lanes/contract.py", "self.count += 1", "self.count += 2")
    assert lane_code("frspec", sources) == before
    edit(sources / "lanes/frspec.py", 'name: str = "frspec"', 'name: str = "frspec2"')
    assert lane_code("frspec", sources) != before


def test_native_sources_have_a_digest_of_their_own(sources: Path) -> None:
    folder = sources / "kernels/native"
    before = sources_digest(folder)
    assert before == native_sources()
    edit(folder / "src/judge.cpp", "<", ">")
    assert sources_digest(folder) != before
    assert sources_digest(sources / "runtime") is None
    assert (native_code() is None) == (library_path() is None)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no law 'block'"):
        law_code("block")
    with pytest.raises(ConfigurationError, match="no lane 'warp'"):
        lane_code("warp")


def test_a_setting_states_the_code_of_its_law_and_of_the_lanes_in_place(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack", draft_vocab=64)
    words = (f"pack={pack}", "profile=cascade-tokenv3", "lanes.frspec=false")

    def work() -> dict:
        generator = MtpGenerator(prepare(compose(list(words))))
        generator.load()
        setting = setting_of(generator, words)
        generator.close()
        return setting

    with ThreadPoolExecutor(1) as pool:
        setting = pool.submit(work).result()
    armed = {one["lane"] for one in setting["audit"]["lanes"] if one["state"] != "declined"}
    assert setting["law_code_sha256"] == law_code("cascade") != law_code("exact")
    assert setting["lanes_code_sha256"] == {lane: lane_code(lane) for lane in armed}
    assert "batched_target_rows" in armed
    assert "frspec" not in armed
    assert (setting["native_sha256"], setting["native_sources_sha256"]) == (native_code(), native_sources())
