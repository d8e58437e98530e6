"""The whole road on a tiny pack: compose -> settle -> arm -> load -> prove -> decode, in the served order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mtrun.lanes.catalogue import LANE_NAMES
from mtrun.runtime import Engine, compose
from mtrun.runtime.errors import AuditError, CapacityError, ConfigurationError, LaneError, RequestError
from mtrun.runtime.requests import Chunk, Finished, Prefill
from support.tiny_pack import write_tiny_pack

HELLO = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # 64-wide heads, so that the 8-bit cache lane applies; 128 draft ids, so that the draft vocabulary lanes do.
    return write_tiny_pack(tmp_path_factory.mktemp("pack"), hidden=128, heads=2, kv_heads=1, draft_vocab=128)


def engine(pack: Path, *overrides: str, config_dir: Path | None = None) -> Engine:
    return Engine(compose([f"pack={pack}", *overrides], config_dir=config_dir))


def lanes(audit: dict) -> dict[str, dict]:
    return {lane["lane"]: lane for lane in audit["lanes"]}


def test_every_lane_has_a_verdict_with_reason_and_provenance_before_the_first_request(pack: Path) -> None:
    with engine(pack, "profile=turbo") as running:
        found = lanes(running.audit())
    assert tuple(found) == LANE_NAMES
    assert all(lane["state"] in ("armed", "declined") and lane["reason"] for lane in found.values())
    assert all(lane["decided_by"]["source"] == "auto-arm" for lane in found.values())
    assert found["block_verify"]["state"] == "armed"
    assert found["kv_q8"]["code"] == "not_auto"


def test_a_request_engages_exactly_the_lanes_whose_code_ran(pack: Path) -> None:
    with engine(pack, "profile=turbo", "lanes.batched_target_rows=false") as running:
        running.generate(HELLO, max_tokens=12, seed=1)
        found = lanes(running.audit())
        for name in ("frspec", "draft_prescatter", "block_verify"):
            other = found.get(found[name]["served_by"], found[name])
            assert other["state"] == "engaged"
            assert other["engaged_count"] > 0
        assert found["batched_target_rows"]["code"] == "operator"


def test_a_lane_whose_work_another_does_stays_armed_says_so_and_meets_a_requirement(pack: Path) -> None:
    with engine(pack, "profile=turbo", "audit.require=[frspec]") as running:
        if lanes(running.audit())["draft_chain"]["state"] == "declined":
            pytest.skip("the native library is not built")
        running.generate(HELLO, max_tokens=12, seed=1)
        found = lanes(running.audit())["frspec"]
        assert (found["state"], found["engaged_count"], found["served_by"]) == ("armed", 0, "draft_chain")
        assert found["reason"].endswith("its work is done by draft_chain.")
        assert "its work is done by draft_chain" in " ".join(running.verdict_table(width=200).split())
        running.generate(HELLO, max_tokens=12, seed=1, presence_penalty=0.5)
        found = lanes(running.audit())["frspec"]
    assert (found["state"], found["served_by"]) == ("engaged", None)
    assert "its work" not in found["reason"]


def test_plain_and_greedy_requests_do_not_engage_a_law(pack: Path) -> None:
    with engine(pack, "profile=cascade-tokenv3") as running:
        greedy = running.generate(HELLO, max_tokens=8, temperature=0.0).finished
        plain = running.generate(HELLO, max_tokens=8, depth=0).finished
        drafted = running.generate(HELLO, max_tokens=8).finished
    assert not greedy.law.engaged
    assert greedy.law.distribution_exact
    assert not plain.law.engaged
    assert plain.counts.drafted == 0
    assert drafted.law.engaged
    assert not drafted.law.distribution_exact
    assert drafted.law.rule == "tokenv3"


@pytest.mark.parametrize(
    ("overrides", "source", "state"),
    [
        (("profile=turbo",), "auto-arm", "declined"),
        (("profile=mine",), "user file", "armed"),
        (("profile=mine", "lanes.kv_q8=false"), "command line", "declined"),
        (("profile=turbo", "lanes.kv_q8=true"), "command line", "armed"),
        (("profile=exact-stock",), "group file", "declined"),
    ],
)
def test_the_last_word_on_a_lane_wins_and_says_so(
    pack: Path, tmp_path: Path, overrides: tuple[str, ...], source: str, state: str
) -> None:
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "mine.yaml").write_text(
        "# @package _global_\n# Turbo with an 8-bit cache.\ndefaults:\n  - turbo\n  - _self_\nlanes:\n  kv_q8: true\n"
    )
    with engine(pack, *overrides, config_dir=tmp_path) as running:
        verdict = lanes(running.audit())["kv_q8"]
    assert (verdict["decided_by"]["source"], verdict["state"]) == (source, state)


def test_a_lane_that_was_asked_for_and_cannot_serve_stops_the_start(tmp_path: Path) -> None:
    bare = write_tiny_pack(tmp_path / "bare", head=False)
    with pytest.raises(LaneError, match="frspec"):
        engine(bare, "lanes.frspec=true").ready()


def test_a_pack_without_a_head_serves_plain_and_says_why(tmp_path: Path) -> None:
    bare = write_tiny_pack(tmp_path / "bare", head=False)
    with engine(bare, "profile=cascade-tokenv3") as running:
        finished = running.generate(HELLO, max_tokens=6).finished
        assert running.audit()["pack"]["head"]["ok"] is False
    assert finished.counts.cycles == 0
    assert not finished.law.engaged
    assert finished.law.distribution_exact


def test_audit_require_fails_closed(pack: Path) -> None:
    with pytest.raises(AuditError, match="kv_q8"):
        engine(pack, "profile=turbo", "audit.require=[kv_q8]").ready()


def test_what_would_not_fit_is_refused_with_the_figures_before_prefill(pack: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"weights need .* MiB"):
        engine(pack, "engine.memory_limit=100000")
    with engine(pack, "engine.memory_limit=4MB") as running:
        running.generate(HELLO, max_tokens=4)
        with pytest.raises(CapacityError, match=r"engine\.memory_limit is 4 MiB"):
            running.generate([5] * 400, max_tokens=100)
        assert running.generate(HELLO, max_tokens=4).finished.completion_tokens == 4


def test_the_sampler_in_force_is_request_over_profile_over_pack(pack: Path) -> None:
    with engine(pack, "sampler.top_k=7") as running:
        assert running.sampling({}).top_k == 7
        assert running.sampling({"top_k": 3}).top_k == 3
        assert running.sampling({}).top_p == 0.95
        assert running.sampler_in_force()["top_k"]["decided_by"]["source"] == "command line"
        assert running.sampler_in_force()["top_p"]["decided_by"]["source"] == "pack"
        with pytest.raises(RequestError, match="top_q"):
            running.sampling({"top_q": 1})


def test_streaming_and_whole_replies_are_the_same_tokens_and_events_come_in_order(pack: Path) -> None:
    with engine(pack) as running:
        whole = running.generate(HELLO, max_tokens=24, seed=5)
        events = list(running.stream(HELLO, max_tokens=24, seed=5))
    chunks = [event for event in events if isinstance(event, Chunk)]
    assert isinstance(events[0], Prefill)
    assert isinstance(events[-1], Finished)
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == whole.token_ids
    assert "".join(chunk.text for chunk in chunks) == whole.text


def test_a_seed_repeats_a_reply_on_a_fresh_engine_and_an_unseeded_one_is_fresh(pack: Path) -> None:
    """`cost_depth` measures how deep an unseeded request drafts, which its seed does not repeat."""
    with engine(pack, "lanes.cost_depth=false") as first:
        seeded = first.generate(HELLO, max_tokens=24, seed=9).token_ids
        unseeded = [first.generate(HELLO, max_tokens=24) for _ in range(3)]
    with engine(pack) as second:
        assert second.generate(HELLO, max_tokens=24, seed=9).token_ids == seeded
        replay = second.generate(HELLO, max_tokens=24, seed=unseeded[0].finished.seed)
    assert replay.token_ids == unseeded[0].token_ids
    assert len({reply.token_ids for reply in unseeded}) == 3


def test_leaving_a_stream_cancels_the_request(pack: Path) -> None:
    with engine(pack) as running:
        for event in running.stream(HELLO, max_tokens=400, ignore_eos=True):
            if isinstance(event, Chunk):
                break
        assert running.generate(HELLO, max_tokens=4).finished.completion_tokens == 4
        assert running.worker.snapshot().cancelled == 1


def test_context_limit_bounds_prompt_and_reply_together(pack: Path) -> None:
    with engine(pack, "engine.context_limit=64", "draft.depth=5") as running:
        reply = running.generate([5] * 60, max_tokens=100, ignore_eos=True).finished
        assert (reply.reason, reply.completion_tokens) == ("length", 4)
        with pytest.raises(RequestError, match="64 tokens"):
            running.generate([5] * 64)


def test_the_blas_lane_arms_in_a_fresh_process_and_is_too_late_in_one_that_has_mlx(pack: Path) -> None:
    """The served order, end to end through the command line: nothing of ours imports mlx before the lane acts."""
    command = [sys.executable, "-m", "mtrun.runtime.cli.main", "audit", f"pack={pack}", "profile=turbo", "--json"]
    fresh = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    late = "import mlx.core, sys; from mtrun.runtime.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", late, "audit", f"pack={pack}", "profile=turbo", "--json"]
    loaded = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    if sys.platform == "linux":
        assert lanes(loaded)["cpu_blas"]["code"] == "too_late"
        assert lanes(fresh)["cpu_blas"]["code"] in ("proved", "not_built", "no_target")
    else:
        assert lanes(fresh)["cpu_blas"]["code"] == "platform"
    assert all(
        lanes(fresh)[name]["state"] == lanes(loaded)[name]["state"] for name in lanes(fresh) if name != "cpu_blas"
    )
