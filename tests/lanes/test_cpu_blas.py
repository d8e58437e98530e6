"""The lane in fresh processes: this one may have imported mlx already, and a BLAS is bound once in a process."""

import json
import platform
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from mtrun.kernels.blas import forwarder
from mtrun.lanes.contract import Decision, Evidence, Exactness, Latch, PackEvidence, Stage
from mtrun.lanes.cpu_blas import FLOOR_GFLOPS, LANE, counter_reader

PREAMBLE = """
import json, sys
from mtrun.kernels.blas import forwarder
from mtrun.lanes import catalogue
from mtrun.lanes.contract import Decision, PackEvidence, Stage
from mtrun.runtime.arming import autoarm
from mtrun.runtime.arming.evidence import gather
from mtrun.runtime.arming.install import Installation, Orders
from mtrun.runtime.verdicts import DecidedBy, VerdictRegistry

PACK = PackEvidence("tiny", "llama", 64, 256, 2, None, Decision(True, "present", "fits"), None, True)

def arm(explicit=None):
    lanes = catalogue.load(["cpu_blas"])
    evidence = gather(threads=2, law="exact", depth=3, pack=PACK)
    decisions = autoarm.choose(lanes, evidence, explicit)
    wanted = explicit or {"cpu_blas": (decisions["cpu_blas"].ok, DecidedBy("auto-arm", ""))}
    registry = VerdictRegistry(lanes)
    installation = Installation(Orders(lanes, evidence, wanted, decisions), registry)
    installation.arm(Stage.PROCESS)
    installation.arm(Stage.ENGINE, None)
    return registry, evidence

def multiply(device=None):
    import mlx.core as mx
    ones = mx.ones((32, 32))
    mx.eval(mx.matmul(ones, ones, stream=mx.cpu))

def answer(registry, **more):
    registry.start_serving()
    idle = registry.verdict("cpu_blas").state.value
    multiply()
    evidence = gather(threads=2, law="exact", depth=3, pack=PACK)
    print(json.dumps({"audit": registry.to_json(evidence, {})["lanes"][0], "idle": idle, **more}))
"""

linux_with_blas = pytest.mark.skipif(
    platform.system() != "Linux" or forwarder.library_path() is None or forwarder.target_path() is None,
    reason="needs the built forwarder and scipy-openblas32",
)


def run(body: str) -> dict:
    script = PREAMBLE + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


EVIDENCE = Evidence(
    system="Linux",
    machine="x86_64",
    device="cpu",
    mlx_loaded=False,
    blas_forwarder="/lib/forward.so",
    blas_forwarder_bound=False,
    blas_target="/lib/openblas.so",
    threads=2,
    law="exact",
    depth=3,
    pack=PackEvidence("tiny", "llama", 64, 256, 2, None, Decision(True, "present", "fits"), None, True),
)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, "supported"),
        ({"system": "Darwin", "device": "metal"}, "platform"),
        ({"device": "cuda"}, "device"),
        ({"blas_forwarder": None}, "not_built"),
        ({"blas_target": None}, "no_target"),
        ({"mlx_loaded": True}, "too_late"),
        ({"mlx_loaded": True, "blas_forwarder_bound": True}, "supported"),
    ],
)
def test_support_follows_from_the_evidence(change, code):
    decision = LANE.supports(replace(EVIDENCE, **change))
    assert (decision.code, decision.ok) == (code, code == "supported")


def test_the_lane_says_that_it_rounds():
    assert LANE.exactness is Exactness.ROUNDING
    assert LANE.stage is Stage.PROCESS
    assert "bit-identical" in LANE.summary


def test_the_reader_counts_only_what_moved_since_it_last_looked():
    counter = [7]
    read = counter_reader(lambda: counter[0])
    latch = Latch()
    read(latch)
    assert (latch.count, latch.first) == (0, None)
    counter[0] = 10
    read(latch)
    first = latch.first
    read(latch)
    assert (latch.count, latch.first) == (3, first)
    assert first is not None
    latch.reset()
    read(latch)
    assert (latch.count, latch.first) == (0, None)


@linux_with_blas
def test_bound_before_mlx_it_is_proved_then_engaged_by_a_served_product():
    found = run("""
        registry, evidence = arm()
        answer(registry, loaded=evidence.mlx_loaded)
    """)
    lane, figures = found["audit"], found["audit"]["proof"]["figures"]
    assert found["loaded"] is False
    assert found["idle"] == "armed"
    assert (lane["state"], lane["code"], lane["engaged_count"]) == ("engaged", "proved", 2)  # ours and the evidence's
    assert figures["gflops"] > FLOOR_GFLOPS
    assert set(figures) == {"gflops", "gflops_threaded", "max_abs_error", "calls"}
    assert figures["calls"] > 0
    assert figures["max_abs_error"] < 1e-3


@linux_with_blas
def test_after_mlx_it_is_declined_as_too_late_and_never_engaged():
    found = run("""
        import mlx.core
        registry, _ = arm()
        answer(registry, calls=forwarder.calls())
    """)
    assert (found["audit"]["state"], found["audit"]["code"]) == ("declined", "too_late")
    assert (found["calls"], found["audit"]["engaged_count"]) == (0, 0)


@linux_with_blas
def test_a_second_engine_of_the_process_finds_it_bound():
    found = run("""
        arm()
        assert "mlx.core" in sys.modules
        registry, evidence = arm()
        answer(registry, loaded=evidence.mlx_loaded, bound=evidence.blas_forwarder_bound)
    """)
    assert (found["loaded"], found["bound"], found["audit"]["state"]) == (True, True, "engaged")


@linux_with_blas
def test_a_library_opened_after_mlx_is_not_taken_for_bound():
    found = run("""
        import mlx.core
        forwarder._open(forwarder.library_path(), forwarder.target_path(), 1)
        registry, evidence = arm()
        answer(registry, bound=evidence.blas_forwarder_bound)
    """)
    assert (found["bound"], found["audit"]["code"]) == (False, "too_late")


@linux_with_blas
def test_a_proof_fails_when_products_do_not_arrive():
    found = run("""
        import mlx.core
        forwarder._open(forwarder.library_path(), forwarder.target_path(), 1)
        lane = catalogue.load(["cpu_blas"])["cpu_blas"]
        from mtrun.lanes.contract import Installed, Latch
        evidence = gather(threads=1, law="exact", depth=3, pack=PACK)
        proof = lane.prove(Installed(lambda: None, Latch()), None, evidence)
        print(json.dumps({"ok": proof.ok, "reason": proof.reason}))
    """)
    assert found["ok"] is False
    assert "did not reach" in found["reason"]


@pytest.mark.parametrize(
    ("setup", "code"),
    [
        ("forwarder.library_path = lambda: None", "not_built"),
        ("sys.modules['scipy_openblas32'] = None", "no_target"),
        ("import platform; platform.system = lambda: 'Darwin'; platform.machine = lambda: 'arm64'", "platform"),
    ],
)
@linux_with_blas
def test_it_is_declined_where_it_cannot_work(setup, code):
    found = run(f"""
        {setup}
        registry, _ = arm()
        assert "mlx.core" not in sys.modules
        answer(registry, calls=forwarder.calls())
    """)
    assert (found["audit"]["state"], found["audit"]["code"], found["calls"]) == ("declined", code, 0)


@linux_with_blas
def test_asked_for_too_late_it_stops_the_start_up():
    found = run("""
        import mlx.core
        from mtrun.runtime.errors import LaneError
        try:
            arm({"cpu_blas": (True, DecidedBy("command line", "lanes.cpu_blas=true"))})
        except LaneError as error:
            print(json.dumps({"text": str(error), "exit": error.exit_code}))
    """)
    assert found["exit"] == 2
    assert "too late" in found["text"]
    assert "lanes.cpu_blas=false" in found["text"]


@linux_with_blas
def test_switched_off_it_leaves_the_process_alone():
    found = run("""
        registry, _ = arm({"cpu_blas": (False, DecidedBy("user file", "mine.yaml"))})
        answer(registry, calls=forwarder.calls())
    """)
    assert (found["audit"]["state"], found["audit"]["code"], found["calls"]) == ("declined", "operator", 0)
    assert found["audit"]["decided_by"] == {"source": "user file", "text": "mine.yaml"}


def test_arming_imports_neither_mlx_nor_numpy():
    found = run("""
        autoarm.choose(catalogue.load(["cpu_blas"]), gather(threads=1, law="exact", depth=1, pack=PACK))
        print(json.dumps([name for name in ("mlx", "mlx.core", "numpy", "mlx_lm") if name in sys.modules]))
    """)
    assert found == []


@linux_with_blas
def test_binding_needs_a_thread_a_library_and_a_target(monkeypatch):
    with pytest.raises(forwarder.BindError, match="at least one thread"):
        forwarder.bind(0)
    monkeypatch.setattr(forwarder, "target_path", lambda: None)
    with pytest.raises(forwarder.BindError, match="pip install"):
        forwarder.bind(1)
    monkeypatch.setattr(forwarder, "library_path", lambda: None)
    with pytest.raises(forwarder.BindError, match="not built"):
        forwarder.bind(1)


@linux_with_blas
def test_a_target_that_cannot_be_opened_binds_nothing():
    found = run("""
        forwarder.target_path = lambda: "/nonexistent/libopenblas.so"
        registry, _ = arm()
        answer(registry, bound=forwarder.bound_before_mlx())
    """)
    assert (found["audit"]["state"], found["audit"]["code"]) == ("declined", "install_failed")
    assert "cannot be opened" in found["audit"]["reason"]
    assert found["bound"] is False
