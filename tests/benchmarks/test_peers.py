"""The measurement of several runtimes, with peers that need none: order, receipts, resume, ratios, flags, skipping."""

import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import summary, texts
from benchmarks.peers.__main__ import Run, conclude
from benchmarks.peers.base import AbsentError, row_figures
from benchmarks.peers.folder import Folder, ReceiptError
from benchmarks.peers.plan import MODULES, Entry, Plan, schedule
from benchmarks.peers.process import PeerError, PeerProcess
from mtrun.runtime.measure.code import root
from mtrun.runtime.packs.tokenizer import PackTokenizer
from support.tiny_pack import write_tiny_pack

FAKE = "tests.benchmarks.fake_peer"
SPEEDS = {"ours-plain": 30.0, "mlx": 10.0, "llama": 60.0}
PLAN = Plan(tuple(Entry(name, FAKE, {"speed": speed}) for name, speed in SPEEDS.items()), 4, 1, 12, 6, 5, (1, 2), 3)
TEXTS = SimpleNamespace(prefill=list(range(12)), prompts=[[number] * 6 for number in range(9)])


class InProcess:
    """The fake peer without a process. `asked` is shared by all of a run: (peer, op, words)."""

    def __init__(self, entry: Entry, asked: list) -> None:
        from tests.benchmarks.fake_peer import Peer

        self.entry, self.asked, self.peer, self.stopped = entry, asked, Peer(), False

    def ask(self, op, **words):
        self.asked.append((self.entry.name, op, words))
        try:
            return getattr(self.peer, op)(**words)
        except (AbsentError, MemoryError) as error:
            raise PeerError(str(error)) from error

    def stop(self):
        self.stopped = True


def measure(folder: Folder, keep: bool = False) -> list:
    asked: list = []
    Run(folder, TEXTS, lambda entry: InProcess(entry, asked), keep).measure()
    return asked


def fresh(path: Path, plan: Plan = PLAN) -> Folder:
    return Folder.start(path, plan, ["--some", "words"])


def with_settings(name: str, **settings) -> Plan:
    entries = [
        replace(one, settings={**one.settings, **(settings if one.name == name else {})}) for one in PLAN.entries
    ]
    return replace(PLAN, entries=tuple(entries))


def counted(asked: list) -> list[tuple[str, str]]:
    """(peer, measure) of the windows asked for; warm-ups, which make eight tokens, are no windows."""
    return [(name, op) for name, op, words in asked if op != "open" and words.get("tokens") != command.WARM_UP]


def test_every_window_is_measured_once_and_kept_with_what_was_asked_for(tmp_path):
    folder = fresh(tmp_path / "out")
    asked = measure(folder)
    assert Counter(counted(asked)) == {(name, one): 4 for name in SPEEDS for one in ("prefill", "decode", "rows")}
    read = Folder.read(tmp_path / "out")
    assert read.windows == folder.windows
    assert set(read.windows) == set(schedule(PLAN))
    assert {path.name for path in (tmp_path / "out" / "windows").iterdir()} == {slot.file for slot in schedule(PLAN)}
    prompts = [words["ids"] for name, op, words in asked if (name, op) == ("mlx", "rows")]
    assert prompts == [TEXTS.prompts[number] for number in (0, 1, 2, 3)]
    seeds = {words["seed"] for _, op, words in asked if op == "decode"}
    assert seeds == {0, 1, 2, 3}
    assert read.run["sessions"][0]["ended"]


def test_peers_take_turns_and_the_starter_alternates(tmp_path):
    asked = counted(measure(fresh(tmp_path / "out")))
    rounds = [[name for name, _ in asked[at : at + 3]] for at in range(0, len(asked), 3)]
    measures = [{one for _, one in asked[at : at + 3]} for at in range(0, len(asked), 3)]
    assert all(sorted(one) == sorted(SPEEDS) for one in rounds), "every peer once before any comes again"
    assert measures == [{"prefill"}, {"decode"}, {"rows"}] * 4
    starters = [one[0] for one in rounds[::3]]
    assert starters == ["ours-plain", "llama", "mlx", "ours-plain"]
    assert all(even == odd[::-1] for even, odd in zip(rounds[0::6], rounds[3::6], strict=True))


def test_no_peer_sits_earlier_in_its_rounds_than_another():
    slots = [slot for slot in schedule(replace(PLAN, rounds=6)) if slot.measure == "decode"]
    places = Counter()
    for at, slot in enumerate(slots):
        places[slot.entry] += at % len(SPEEDS)
    assert max(places.values()) == min(places.values())


def test_a_peer_that_is_absent_is_left_out_with_its_reason_and_the_others_go_on(tmp_path, capsys):
    folder = fresh(tmp_path / "out", with_settings("mlx", absent="no such package here."))
    asked = measure(folder)
    assert {name for name, _ in counted(asked)} == {"ours-plain", "llama"}
    assert folder.run["skipped"] == {"mlx": "no such package here"}
    conclude(folder, [], False)
    assert "- mlx was left out: no such package here." in (tmp_path / "out" / "summary.md").read_text()
    assert capsys.readouterr().out == (tmp_path / "out" / "summary.md").read_text()


def test_a_peer_that_fails_in_the_middle_keeps_its_windows_and_ends(tmp_path):
    folder = fresh(tmp_path / "out", with_settings("mlx", fails="out of memory"))
    asked = counted(measure(folder))
    assert asked.count(("mlx", "decode")) == 2, "the second one failed"
    assert folder.run["skipped"]["mlx"] == "decode of round 1 failed: out of memory"
    assert len([slot for slot in folder.windows if slot.entry == "mlx"]) == 4
    assert len(folder.windows) == 2 * 12 + 4


def test_resume_measures_what_is_missing_and_nothing_twice(tmp_path):
    path = tmp_path / "out"
    measure(fresh(path))
    lost = schedule(PLAN)[7]
    (path / "windows" / lost.file).unlink()
    (path / "windows" / f".{lost.file}.1").write_text("{ half")
    before = {file: file.read_text() for file in (path / "windows").glob("[!.]*")}
    again = Folder.resume(path, PLAN, [])
    asked = measure(again)
    assert counted(asked) == [(lost.entry, lost.measure)]
    assert {name for name, op, _ in asked if op == "open"} == {lost.entry}, "the others need not be loaded"
    assert all(file.read_text() == text for file, text in before.items())
    assert set(Folder.read(path).windows) == set(schedule(PLAN))
    assert measure(Folder.resume(path, PLAN, [])) == []


def test_a_run_is_neither_overwritten_nor_completed_by_another(tmp_path):
    measure(fresh(tmp_path / "out"))
    with pytest.raises(ReceiptError, match="add --resume"):
        fresh(tmp_path / "out")
    with pytest.raises(ReceiptError, match="other options"):
        Folder.resume(tmp_path / "out", replace(PLAN, tokens=6), [])
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    (tmp_path / "out" / "run.json").write_text(json.dumps({**run, "code": {**run["code"], "commit": "other"}}))
    with pytest.raises(ReceiptError, match="other code"):
        Folder.resume(tmp_path / "out", PLAN, [])
    with pytest.raises(ReceiptError, match="cannot read"):
        Folder.read(tmp_path / "absent")


def scaled(folder: Folder, peer: str, measure: str, factors) -> None:
    """Multiplies the seconds of a peer's windows, round by round, wall and CPU alike."""
    for slot, window in folder.windows.items():
        if (slot.entry, slot.measure) == (peer, measure):
            for figure in window["figures"].values():
                figure["seconds"] *= factors[slot.round]
                figure["cpu_seconds"] *= factors[slot.round]


def line_of(found: list[summary.Line], figure: str, peer: str) -> summary.Line:
    (line,) = [line for line in found if (line.figure, line.peer) == (figure, peer)]
    return line


def test_ratios_are_paired_by_round(tmp_path):
    folder = fresh(tmp_path / "out")
    measure(folder)
    drift = [1.0, 3.0, 0.5, 2.0]
    for peer in SPEEDS:
        scaled(folder, peer, "decode", drift)
    line = line_of(summary.lines(folder), "decode", "ours-plain")
    assert line.ratios.keys() == {"mlx", "llama"}
    shared = line.ratios["mlx"]
    assert (shared.value, shared.low, shared.high, shared.n) == (*[pytest.approx(3.0)] * 3, 4)
    assert (line.speed.low, line.speed.high) == (pytest.approx(10.0), pytest.approx(60.0))
    scaled(folder, "llama", "decode", [1.0, 1.1, 1.2, 1.3])
    own = line_of(summary.lines(folder), "decode", "ours-plain").ratios["llama"]
    assert own.value == pytest.approx(0.5 * math.prod([1.0, 1.1, 1.2, 1.3]) ** 0.25)
    assert own.low < own.value < own.high
    rows = line_of(summary.lines(folder, ["ours-plain"]), "rows 2", "llama")
    assert rows.ratios["ours-plain"].value == pytest.approx(2.0)


def test_a_window_that_shared_its_core_is_flagged_left_out_and_measured_again(tmp_path):
    path = tmp_path / "out"
    folder = fresh(path)
    measure(folder)
    busy = next(slot for slot in folder.windows if (slot.round, slot.measure, slot.entry) == (2, "decode", "mlx"))
    window = folder.windows[busy]
    window["figures"]["decode"]["seconds"] *= 1.2
    folder.add(busy, window)
    line = line_of(summary.lines(folder), "decode", "mlx")
    assert (line.flagged, line.windows, line.speed.n) == (1, 4, 3)
    assert line_of(summary.lines(folder), "decode", "llama").ratios["mlx"].n == 3
    kept = line_of(summary.lines(folder, keep_contended=True), "decode", "mlx")
    assert (kept.flagged, kept.speed.n) == (1, 4)
    assert kept.speed.low < line.speed.low
    assert "| 4 (1) |" in summary.render(folder)
    assert measure(Folder.resume(path, PLAN, []), keep=True) == [], "a kept window is not measured again"
    assert counted(measure(Folder.resume(path, PLAN, []))) == [("mlx", "decode")]
    assert line_of(summary.lines(Folder.read(path)), "decode", "mlx").flagged == 0


def test_cpu_time_is_held_against_the_threads_that_run_throughout():
    figure = {"tokens": 1, "seconds": 1.0, "cpu_seconds": 2.0}
    assert summary.contention(figure, 2) == pytest.approx(1.0)
    assert not summary.flagged({"figures": {"decode": figure}}, 2)
    assert summary.flagged({"figures": {"prefill": {**figure, "cpu_seconds": 1.7}, "decode": figure}}, 2)


def test_a_line_without_a_window_that_counts_says_so(tmp_path):
    folder = fresh(tmp_path / "out", with_settings("mlx", share=1.5))
    measure(folder)
    line = line_of(summary.lines(folder), "decode", "mlx")
    assert (line.speed, line.ratios["llama"], line.flagged) == (None, None, 4)
    assert line.contention == pytest.approx(1.5)
    assert "| decode | mlx | no window counts |" in summary.render(folder)


def test_the_summary_is_computed_from_the_receipts_alone(tmp_path):
    folder = fresh(tmp_path / "out")
    measure(folder)
    conclude(folder, ["mlx"], False)
    shown = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert shown == json.loads(json.dumps(summary.to_json(Folder.read(tmp_path / "out"), ["mlx"])))
    text = (tmp_path / "out" / "summary.md").read_text()
    assert text == summary.render(Folder.read(tmp_path / "out"), ["mlx"])
    assert "| decode | llama | 60.00 (60.00-60.00) | 6.00 [6.00, 6.00] | 1.00 | 4 (0) |" in text


def test_a_plan_survives_its_receipt():
    assert Plan.of_json(PLAN.to_json()) == PLAN
    assert PLAN.context >= max(PLAN.prefill_tokens, PLAN.prompt_tokens + PLAN.tokens)


def test_a_peer_runs_in_a_process_of_its_own(tmp_path):
    process = PeerProcess("fake", FAKE, sys.executable)
    try:
        assert process.ask("open", settings={"speed": 2.0, "threads": 1, "talks": True})["what"] == "nothing"
        assert process.ask("prefill", ids=[1, 2, 3, 4])["figures"]["prefill"]["seconds"] == 2.0
        with pytest.raises(PeerError, match="KeyError"):
            process.ask("open", settings={"threads": 1}) and process.ask("prefill", ids=[1])
        assert process.ask("close") == {}
    finally:
        process.stop()
    with pytest.raises(PeerError, match="cannot be started"):
        PeerProcess("fake", FAKE, str(tmp_path / "no-python"))


def test_an_interpreter_without_a_runtime_is_told_in_words(monkeypatch):
    from importlib import import_module

    for name in ("mlx_lm", "llama_cpp", "gguf"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("mlx-lm", "llama.cpp", "transformers"):
        with pytest.raises(AbsentError, match="absent"):
            import_module(MODULES[name]).Peer().open({"threads": 1, "context": 9, "format": None})


def test_widths_are_timed_after_a_forward_that_does_not_count(monkeypatch):
    calls, seconds = [], iter([100.0, 1.0, 4.0, 200.0, 5.0, 6.0])
    lap = lambda self, tokens: {"tokens": tokens, "seconds": (now := next(seconds)), "cpu_seconds": 2 * now}  # noqa: E731
    monkeypatch.setattr("benchmarks.peers.base.Stopwatch.figure", lap)
    found = row_figures(lambda width: calls.append(width), lambda width: calls.append(-width), (1, 4), 2)
    assert calls == [1, -1] * 3 + [4, -4] * 3
    assert found == {
        "rows 1": {"tokens": 1, "seconds": 2.5, "cpu_seconds": 5.0},
        "rows 4": {"tokens": 4, "seconds": 5.5, "cpu_seconds": 11.0},
    }


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Path:
    return write_tiny_pack(tmp_path_factory.mktemp("peers") / "pack", draft_vocab=64)


def test_every_peer_reads_prompts_of_the_length_that_was_asked_for(pack):
    tokenizer, lines = PackTokenizer(pack), ["the cat sat", "how are you today"]
    assert len(texts.running_text(tokenizer, lines, 100)) == 100
    chats = [texts.chat_prompt(tokenizer, lines, number, 64) for number in range(2)]
    assert [len(one) for one in chats] == [64, 64]
    assert chats[0] != chats[1]
    assert texts.chat_prompt(tokenizer, lines, 2, 64) == chats[0]
    opened = tokenizer.encode_chat([{"role": "user", "content": "x"}])
    assert chats[0][:2] == opened[:2]
    assert chats[0][-3:] == opened[-3:], "the assistant's turn is open"
    assert texts.chat_prompt(tokenizer, lines, 0, 3) == texts.running_text(tokenizer, lines, 3)


def test_the_real_command_measures_ours_and_says_what_is_left_out(pack, tmp_path, capsys):
    """A pack of one's own has no published GGUF file, so llama.cpp is left out with that reason."""
    out = tmp_path / "out"
    words = f"--out {out} --pack {pack} --peers ours,llama.cpp --cells plain,exact --rounds 2 --keep-contended".split()
    words += ["--prefill-tokens", "20", "--prompt-tokens", "24", "--tokens", "6", "--widths", "1,3", "--repeats", "1"]
    words.append("lanes.cpu_blas=false")
    assert command.main(words) == 1
    folder = Folder.read(out)
    assert folder.run["skipped"].keys() == {"llama.cpp-published", "llama.cpp-q4_0"}
    assert "no published GGUF file" in folder.run["skipped"]["llama.cpp-q4_0"]
    for slot, window in folder.windows.items():
        assert all(figure["seconds"] > 0 and figure["cpu_seconds"] > 0 for figure in window["figures"].values())
        if slot.measure == "decode":
            assert window["figures"]["decode"]["tokens"] == 5
            assert len(window["ids"]) == 6
            assert (window["counts"]["drafted"] > 0) == (slot.entry == "ours-exact")
    assert len(folder.windows) == 2 * 2 * 3
    assert "| rows 3 | ours-exact |" in capsys.readouterr().out
    assert command.main(words) == 2, "a finished run is not overwritten"
    assert command.main([*words, "--resume"]) == 1
    assert Folder.read(out).windows == folder.windows


def test_a_wrong_option_says_what_to_type(pack, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["--peers", "llama"])
    assert "--peers has no llama: name some of ours" in capsys.readouterr().err
    asked = ["--pack", str(pack), "--out", str(tmp_path / "x")]
    assert command.main([*asked, "--reference", "mlx"]) == 2
    assert "is not measured: name some of ours-plain" in capsys.readouterr().err
    assert command.main([*asked, "--cells", "plane"]) == 2
    assert "there is no cell 'plane': name standard, some of plain, exact" in capsys.readouterr().err
    assert command.main([*asked, "--prompts", str(tmp_path / "none.txt")]) == 2
    assert command.main(["--pack", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize("module", ["base", "worker", "llama_cpp", "mlx_lm", "transformers"])
def test_a_peer_needs_nothing_of_ours_in_its_interpreter(module: str) -> None:
    """Imported by a bare interpreter that has the checkout on its path and no package installed."""
    code = f"import sys; sys.path.insert(0, {str(root())!r}); import benchmarks.peers.{module}"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
