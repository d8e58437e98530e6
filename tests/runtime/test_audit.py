import copy
import http.server
import json
import threading
from dataclasses import replace

import pytest

from mtrun.lanes.contract import Exactness
from mtrun.runtime import audit
from mtrun.runtime.errors import AuditError, ConfigurationError
from mtrun.runtime.verdicts import DecidedBy, State, Verdict

STORED = {
    "schema": "mtrun.audit/1",
    "versions": {"mtrun": "0.1.0", "mlx": "1", "mlx-lm": "1", "python": "3.11.2"},
    "device": {"system": "Linux", "threads": 2},
    "pack": {"name": "tiny", "head": {"ok": True, "code": "present", "reason": "fits"}},
    "law": {"name": "cascade", "parameters": {"alpha": 0.95}},
    "serving_since": None,
    "summary": "2 lanes: 1 armed, 1 declined",
    "lanes": [
        {
            "lane": "a",
            "state": "armed",
            "code": "proved",
            "reason": "42 GFLOP/s",
            "decided_by": {"source": "auto-arm", "text": ""},
            "proof": {"ok": True, "reason": "42 GFLOP/s", "figures": {"gflops": 42.0}},
            "first_engaged_at": None,
            "engaged_count": 0,
            "stand_asides": {},
        },
        {"lane": "b", "state": "declined", "code": "shape", "reason": "odd", "proof": None},
    ],
}


def changed(*path, to):
    found = copy.deepcopy(STORED)
    target = found
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = to
    return found


def test_an_audit_agrees_with_itself():
    assert audit.diff(STORED, copy.deepcopy(STORED)) == []


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("serving_since",), 1.5),
        (("summary",), "other"),
        (("lanes", 0, "first_engaged_at"), 2.5),
        (("lanes", 0, "engaged_count"), 9),
        (("lanes", 0, "served_by"), "b"),
        (("lanes", 0, "stand_asides"), {"penalties": 2}),
        (("lanes", 0, "proof", "figures"), {"gflops": 40.0}),
        (("lanes", 0, "proof", "reason"), "40 GFLOP/s"),
        (("lanes", 0, "reason"), "40 GFLOP/s"),
        (("lanes", 0, "state"), "engaged"),
        (("pack", "head", "reason"), "fits well"),
    ],
)
def test_times_counts_figures_and_sentences_are_no_difference(path, to):
    assert audit.diff(STORED, changed(*path, to=to)) == []


@pytest.mark.parametrize(
    ("path", "to", "line"),
    [
        (("lanes", 0, "state"), "declined", 'lanes.a.state: expected "armed", found "declined"'),
        (
            ("lanes", 0, "decided_by", "source"),
            "user file",
            'lanes.a.decided_by.source: expected "auto-arm", found "user',
        ),
        (("lanes", 0, "proof"), None, "lanes.a.proof: expected {"),
        (("lanes", 1, "code"), "operator", 'lanes.b.code: expected "shape", found "operator"'),
        (("law", "parameters", "alpha"), 0.9, "law.parameters.alpha: expected 0.95, found 0.9"),
        (("versions", "mlx"), "2", 'versions.mlx: expected "1", found "2"'),
        (("device", "gpu"), True, "device.gpu: expected null, found true"),
    ],
)
def test_each_difference_is_one_line_that_says_where(path, to, line):
    (found,) = audit.diff(STORED, changed(*path, to=to))
    assert found.startswith(line)


def test_a_lane_expected_engaged_but_only_armed_differs():
    assert audit.diff(changed("lanes", 0, "state", to="engaged"), STORED) == [
        'lanes.a.state: expected "engaged", found "armed"'
    ]


def test_lanes_are_matched_by_name_and_none_goes_missing_unsaid():
    turned = changed("lanes", to=STORED["lanes"][::-1])
    fewer = changed("lanes", to=STORED["lanes"][:1])
    assert audit.diff(STORED, turned) == []
    assert audit.diff(STORED, fewer) == ["lanes.b: expected, but not in the catalogue any more"]
    assert audit.diff(fewer, STORED) == ["lanes.b: in the catalogue, but not expected"]


@pytest.mark.parametrize("broken", [{}, [], "x", {"lanes": 3}, {"schema": "mtrun.audit/1", "lanes": [{}]}])
def test_what_is_no_audit_is_not_compared(broken):
    with pytest.raises(AuditError):
        audit.diff(broken, STORED)


def test_another_schema_is_not_compared():
    with pytest.raises(AuditError, match=r"schema 'mtrun\.audit/9', not mtrun\.audit/1"):
        audit.diff(changed("schema", to="mtrun.audit/9"), STORED)


def verdict(lane, state):
    return Verdict(lane, state, "x", "the shapes are odd", Exactness.EXACT, DecidedBy("auto-arm", ""))


VERDICTS = [verdict("kv_q8", State.DECLINED), verdict("frspec", State.ARMED), verdict("cpu_blas", State.ENGAGED)]


def test_armed_and_engaged_lanes_meet_a_requirement():
    audit.require(VERDICTS, ["frspec", "cpu_blas", "frspec"])
    audit.require(VERDICTS, [])


def test_a_lane_whose_work_another_does_meets_a_requirement():
    served = replace(verdict("frspec", State.ARMED), served_by="draft_chain")
    audit.require([served, verdict("draft_chain", State.ENGAGED)], ["frspec"])


def test_a_declined_lane_fails_a_requirement_with_its_reason():
    with pytest.raises(AuditError, match=r"kv_q8 is declined \(the shapes are odd\)") as caught:
        audit.require(VERDICTS, ["frspec", "kv_q8"])
    assert caught.value.exit_code == 1


def test_a_required_name_that_is_no_lane_gets_the_nearest():
    with pytest.raises(ConfigurationError, match="did you mean frspec"):
        audit.require(VERDICTS, ["frspecs"])


def test_a_stored_audit_is_read_and_other_files_are_refused(tmp_path):
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(STORED))
    assert audit.read(path) == STORED
    path.write_text("{")
    with pytest.raises(AuditError, match="holds no JSON"):
        audit.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(AuditError, match="cannot read"):
        audit.read(path)
    with pytest.raises(AuditError, match="cannot read"):
        audit.read(tmp_path / "absent.json")


@pytest.fixture
def server():
    """Answers GET with what the test puts into `reply`; keeps the last path and headers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.seen = (self.path, dict(self.headers))
            status, body = self.server.reply
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.reply = (200, json.dumps(STORED).encode())
    served.url = f"http://127.0.0.1:{served.server_address[1]}"
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.mark.parametrize("suffix", ["", "/", "/verdicts"])
def test_the_audit_of_a_running_server_is_fetched(server, suffix):
    assert audit.fetch(server.url + suffix, api_key="secret") == STORED
    path, headers = server.seen
    assert path == "/verdicts"
    assert headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b"{}", "give the server's API key"),
        (404, b"{}", "HTTP 404: is --url that of an mtrun server"),
        (503, b"{}", "not ready"),
        (200, b"<html>", "holds no JSON"),
        (200, b'{"ok": true}', "is no audit"),
    ],
)
def test_a_server_that_answers_otherwise_is_told_in_a_sentence(server, status, body, words):
    server.reply = (status, body)
    with pytest.raises(AuditError, match=words):
        audit.fetch(server.url)


def test_no_server_and_no_address_are_told_apart(server):
    with pytest.raises(AuditError, match="no server answers at"):
        audit.fetch("http://127.0.0.1:1", timeout=2)
    for url in ("localhost:8000", "file:///etc/passwd", "http://", "8000"):
        with pytest.raises(AuditError, match="http://HOST:PORT"):
            audit.fetch(url)
