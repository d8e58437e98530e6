"""The process of one peer: python -m benchmarks.peers.worker MODULE. Its interpreter needs the peer's packages alone.

It reads one JSON object a line from standard input and answers each with one: `open`, `prefill`, `decode`, `rows` with
the arguments of `base.Runtime`, and `close`. What cannot be done is answered {"error": reason}.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import TextIO

from benchmarks.peers.base import AbsentError, Runtime


def serve(peer: Runtime, commands: TextIO, replies: TextIO) -> None:
    """Answers commands until `close` or the end of the input."""
    for line in commands:
        words = json.loads(line)
        name = words.pop("op")
        try:
            answer = getattr(peer, name)(**words) or {}
        except AbsentError as absent:
            answer = {"error": str(absent)}
        except Exception as error:  # a peer is other people's code: it may fail, and the other peers go on
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        replies.write(json.dumps(answer, allow_nan=False) + "\n")
        replies.flush()
        if name == "close":
            return


def main() -> None:
    # Whatever a library prints goes to standard error, so that the replies stay one JSON object a line.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with replies:
        serve(import_module(sys.argv[1]).Peer(), sys.stdin, replies)


if __name__ == "__main__":
    main()
