"""Runs generated code away from everything: a bare interpreter with limits, no files, no network, no children.

Made for the mistakes of a model, not for an attacker: time, memory, processes and file sizes are limited by the
operating system, files and sockets are refused by a hook inside the interpreter. Where the kernel permits, the child
also has a network namespace of its own; `Ran.network` says whether.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

_MODULES = ("collections", "functools", "heapq", "itertools", "math", "operator", "random", "re", "string", "typing")
_OUTPUT = 65536  # bytes of the child's result that are read

# Runs in the child. The result goes to a descriptor of its own: what the code prints is no result.
_CHILD = r"""
import ctypes, json, os, resource, sys
job = json.loads(sys.stdin.buffer.read())
out = os.dup(1)
null = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(null, stream)
libc = ctypes.CDLL(None, use_errno=True)
network = "blocked in the interpreter"
def call(name, *args):
    try:
        return getattr(libc, name)(*args) == 0
    except (AttributeError, OSError):
        return False
NEWUSER, NEWNET, NOBODY = 0x10000000, 0x40000000, 65534
root = os.getuid() == 0
if call("unshare", NEWNET if root else NEWUSER | NEWNET):
    network = "namespace"
else:
    network += " (no namespace: %s)" % os.strerror(ctypes.get_errno())
if root:  # the limit on processes does not hold for root; the library may be readable for root alone, so load it now
    for name in job["modules"]:
        __import__(name)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
call("prctl", 38, 1, 0, 0, 0)  # no new privileges
for name, (soft, hard) in job["limits"].items():
    try:
        resource.setrlimit(getattr(resource, name), (soft, hard))
    except (ValueError, OSError, AttributeError):
        pass
LIBRARY = os.path.dirname(os.__file__) + os.sep
BLOCKED = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "pty.", "ctypes.",
           "shutil.", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.kill", "os.putenv")
def hook(event, args):
    if event.startswith(BLOCKED):
        raise PermissionError("%s is not allowed here" % event)
    if event == "open":
        if args[1] is not None and set(str(args[1])) & set("wax+") or (args[2] or 0) & 3:
            raise PermissionError("writing a file is not allowed here")
        if not str(args[0]).startswith(LIBRARY):
            raise PermissionError("reading a file is not allowed here")
sys.addaudithook(hook)
def verdict(ok, reason):
    os.write(out, json.dumps({"ok": ok, "reason": reason, "network": network}).encode()[:60000])
    os._exit(0)
def shown(value):
    try:
        text = repr(value)
    except BaseException as error:
        text = type(error).__name__
    return text if len(text) <= 80 else text[:77] + "..."
def attempt(what, call):
    try:
        return call()
    except MemoryError:
        verdict(False, "%s ran out of memory." % what)
    except SystemExit:
        verdict(False, "%s asked to exit." % what)
    except BaseException as error:
        words = " ".join(str(error).split())[:120]
        verdict(False, "%s raised %s%s." % (what, type(error).__name__, ": " + words if words else ""))
space = {"__name__": "answer"}
attempt("the code", lambda: exec(compile(job["code"], "answer", "exec"), space))
found = space.get(job["name"])
if not callable(found):
    verdict(False, "the code defines no function %s." % job["name"])
for given, wanted in job["tests"]:
    label = "%s(%s)" % (job["name"], ", ".join(map(shown, given)))
    got = attempt(label, lambda: found(*given))
    same = attempt(label, lambda: type(got) is type(wanted) and got == wanted)
    if same is not True:
        verdict(False, "%s gave %s, not %s." % (label, shown(got), shown(wanted)))
verdict(True, "all %d tests pass." % len(job["tests"]))
"""


@dataclass(frozen=True)
class Limits:
    """What the code may use."""

    cpu_seconds: int = 2
    wall_seconds: float = 5.0
    memory_bytes: int = 256 * 2**20  # address space of the whole child


@dataclass(frozen=True)
class Ran:
    """The outcome of a run. `network` says how the network was kept away."""

    ok: bool
    reason: str
    network: str


def run_tests(code: str, name: str, tests: list[Any], limits: Limits, modules: tuple[str, ...] = ()) -> Ran:
    """Runs `code` and compares function `name` on `tests`, pairs of (arguments, right value) of JSON types.

    `modules` of the standard library can be imported beside the usual ones, whoever may read the library.
    """
    settings = {
        "RLIMIT_CPU": (limits.cpu_seconds, limits.cpu_seconds + 1),
        "RLIMIT_AS": (limits.memory_bytes, limits.memory_bytes),
        "RLIMIT_FSIZE": (0, 0),
        "RLIMIT_NPROC": (0, 0),
        "RLIMIT_NOFILE": (16, 16),
        "RLIMIT_CORE": (0, 0),
    }
    known = (*_MODULES, *modules)
    job = json.dumps({"code": code, "name": name, "tests": tests, "limits": settings, "modules": known}).encode()
    with tempfile.TemporaryDirectory(prefix="mtrun-sandbox-") as folder:
        output, ended = _child(job, folder, limits.wall_seconds)
    if ended is None:
        return Ran(False, f"the code ran longer than {limits.wall_seconds:g} s and was stopped.", "unknown")
    try:
        said = json.loads(output)
        return Ran(said["ok"] is True, str(said["reason"]), str(said["network"]))
    except (ValueError, TypeError, KeyError):
        return Ran(False, _death(ended, limits), "unknown")


def _child(job: bytes, folder: str, wall: float) -> tuple[bytes, int | None]:
    """(output, exit status) of the child; status None when the wall clock ended it."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(job, timeout=wall)
        return output[:_OUTPUT], process.returncode
    except subprocess.TimeoutExpired:
        return b"", None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The child and whatever it started: its whole process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _death(status: int, limits: Limits) -> str:
    if status == -signal.SIGXCPU:
        return f"the code used more than {limits.cpu_seconds} s of CPU time and was stopped."
    if status == -signal.SIGXFSZ:
        return "the code wrote a file and was stopped."
    if status < 0:
        return f"the code was stopped by signal {-status}."
    return f"the code ended with status {status} and no result."
