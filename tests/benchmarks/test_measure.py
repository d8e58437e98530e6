"""The real command on a tiny pack: windows, receipt, resume, report."""

import json
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest

from benchmarks import laws, report
from benchmarks.receipt import Receipt
from benchmarks.summary import by_cell, refusal, speed, summarise, usable
from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.window import score
from support.host_parts import host_parts
from support.tiny_pack import write_tiny_pack
from support.tiny_parts import tiny_parts

TOKENS, SEEDS = 8, 2


def test_a_text_scores_the_same_in_whatever_arrays_the_trunk_speaks(tmp_path: Path) -> None:
    parts = tiny_parts(tmp_path)
    device, host = (
        score(SimpleNamespace(decoder=SimpleNamespace(parts=each)), [5, 9, 3], [7, 30, 2])
        for each in (parts, host_parts(parts))
    )
    rows = parts.trunk.forward(mx.array([[5, 9, 3, 7, 30]]), parts.trunk.new_caches(), "all").logits[2:]
    logs = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
    assert device == pytest.approx(-sum(logs[i, token].item() for i, token in enumerate([7, 30, 2])) / 3, abs=1e-5)
    assert host == pytest.approx(device, abs=1e-5)


def command(folder: Path, out: Path, *words: str) -> list[str]:
    prompts = folder / "prompts.txt"
    prompts.write_text("hello there\n\nhow are you today?\n")
    sizes = f"--seeds {SEEDS} --declined-seeds {SEEDS} --per-seed 1 --tokens {TOKENS} --cells plain,exact".split()
    return [*sizes, "--prompts", str(prompts), "--out", str(out), f"pack={folder / 'pack'}", *words]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bench")
    write_tiny_pack(made / "pack", draft_vocab=64)
    return made


@pytest.fixture(scope="module")
def receipt(folder: Path) -> Receipt:
    """Where `cpu_blas` cannot be armed, its side is left out and the command says so by its exit code."""
    code = laws.main(command(folder, folder / "laws.json"))
    found = Receipt.read(folder / "laws.json")
    assert code == (1 if found.data["skipped_sides"] else 0)
    assert set(found.data["skipped_sides"]) <= {"armed"}
    return found


def test_every_window_is_in_the_receipt_with_what_was_asked_for(receipt: Receipt) -> None:
    counted, refused = usable(receipt.data)
    sides = 2 - len(receipt.data["skipped_sides"])
    assert refused == []
    assert len(counted) == sides * 2 * SEEDS
    assert sum(window["warm_up"] for window in receipt.data["windows"]) == sides * 2
    for window in counted:
        assert len(window["ids"]) == TOKENS
        assert window["reason"] == "length"
        assert window["digest"] == ids_digest(window["ids"])
        assert window["nll"] > 0
        assert 0 < window["decode_seconds"] < window["wall_seconds"]
        assert window["cpu_seconds"] > 0
        assert (window["counts"]["drafted"] > 0) == (window["cell"] == "exact")
        assert window["verdicts"]["cpu_blas"][0] == ("engaged" if window["side"] == "armed" else "declined")


def test_each_cell_keeps_its_configuration_and_its_own_verdicts(receipt: Receipt) -> None:
    cells = receipt.data["cells"]
    exact, plain = cells["declined/exact"], cells["declined/plain"]
    assert exact["config_sha256"] != plain["config_sha256"]
    assert exact["provenance"]["draft.depth"][0] == "command line"
    states = {name: {one["lane"]: one["state"] for one in cell["audit_after"]["lanes"]} for name, cell in cells.items()}
    assert states["declined/exact"]["block_verify"] == "engaged"
    assert states["declined/plain"]["block_verify"] == "declined"
    assert receipt.data["pack"]["trunk_identity"]
    assert receipt.data["sessions"][0]["ended"]


def test_a_run_that_was_killed_is_completed_without_measuring_a_window_twice(folder: Path, receipt: Receipt) -> None:
    out = folder / "killed.json"
    kept = [one for one in receipt.data["windows"] if one["side"] == "declined"][:-2]
    out.write_text(json.dumps({**receipt.data, "plan": {}, "windows": kept}))
    (folder / ".killed.json.1").write_text("{ half")
    assert laws.main(command(folder, out, "--sides", "declined")) == 2, "a finished file is not overwritten"
    assert laws.main(command(folder, out, "--sides", "declined", "--resume")) == 2, "another plan is refused"
    whole = json.loads((folder / "laws.json").read_text())
    whole["windows"] = kept + [one for one in whole["windows"] if one["side"] == "armed"]
    out.write_text(json.dumps(whole))
    laws.main(command(folder, out, "--resume"))
    again = Receipt.read(out)
    assert again.data["windows"][: len(whole["windows"])] == whole["windows"]
    assert digests(again) == digests(receipt)
    assert len(usable(again.data)[0]) == len(usable(receipt.data)[0])


def digests(found: Receipt) -> dict[tuple[str, str], str | None]:
    cells = by_cell(usable(found.data)[0])
    return {key: summarise(*key, cells).digest for key in cells}


def test_the_report_holds_the_figures_of_the_windows_and_notices_an_edit(
    folder: Path, receipt: Receipt, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = str(receipt.path), folder / "docs" / "laws.md"
    assert report.main([path, "--write", str(page)]) == 0
    assert report.main([path, "--check", str(page)]) == 0
    assert report.main([path]) == 0
    text = page.read_text()
    assert capsys.readouterr().out == text
    windows = by_cell(usable(receipt.data)[0])[("declined", "exact")]
    assert f"({min(map(speed, windows)):.2f}-{max(map(speed, windows)):.2f})" in text
    assert str(summarise("declined", "exact", {("declined", "exact"): windows}).digest)[:12] in text
    page.write_text(text.replace("exact", "exacter", 1))
    assert report.main([path, "--check", str(page)]) == 1


def test_a_window_that_is_not_what_was_asked_for_is_refused(receipt: Receipt) -> None:
    window = next(one for one in usable(receipt.data)[0] if one["side"] == "declined" and one["cell"] == "exact")
    cell = receipt.data["cells"]["declined/exact"]
    verdicts, counts = window["verdicts"], window["counts"]
    bad = {
        "tokens": {"ids": window["ids"][:-1]},
        "cpu_blas": {"verdicts": verdicts | {"cpu_blas": ["engaged", 3]}},
        "block_verify": {"verdicts": verdicts | {"block_verify": ["declined", 0]}},
        "identity": {"counts": counts | {"accepted": counts["accepted"] + 1}},
    }
    assert refusal(window, TOKENS, cell) is None
    assert all(refusal({**window, **change}, TOKENS, cell) for change in bad.values())
    data = {**receipt.data, "windows": [{**window, **bad["tokens"]}]}
    text = report.render(Receipt(receipt.path, data))
    assert f"refused: declined/exact seed {window['seed']}" in text
    assert "no window" not in text.split("##")[0]


def test_a_wrong_option_says_what_to_type(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        laws.main(["--cells", "plane"])
    assert "there is no cell plane: name some of plain" in capsys.readouterr().err
    assert laws.main(["--prompts", str(folder / "absent.txt"), "--out", str(folder / "x.json")]) == 2
    assert report.main([str(folder / "absent.json")]) == 2
