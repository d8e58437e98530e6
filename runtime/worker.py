"""The one inference thread: it loads, evaluates and decodes, and serves a FIFO queue of requests.

MLX arrays, streams and random state belong to the thread that made them, so nothing else may touch the model. Requests
enter by `submit` and leave as events of a `Ticket`. An exception in one request fails that request alone; an exception
that ends the thread makes the worker dead, and every waiting and later request is told so at once.
"""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.acceptance.line import accept_line
from mtrun.runtime.errors import CapacityError, EngineStoppedError, MtrunError, RequestError
from mtrun.runtime.requests import Event, Finished, GenerationRequest
from mtrun.runtime.ticket import Ticket

State = Literal["loading", "ready", "stopping", "dead"]

logger = logging.getLogger("mtrun")

_LONGEST_RETRY = 60  # seconds; past a minute an estimate from the mean says nothing
_MOST_REASONS = 32  # distinct stand-aside reasons kept apart, so that health stays bounded
_LAST_CYCLE_SECONDS = 5.0  # how long stop() waits for a cancelled cycle to end


class Generator(Protocol):
    """What the thread drives. Every method runs on the inference thread."""

    def load(self) -> None:
        """Load and evaluate the weights and prove the lanes."""
        ...

    def run(self, request: GenerationRequest, cancelled: Callable[[], bool]) -> Iterator[Event]:
        """Yield events and end with `Finished`. `cancelled` is asked between cycles and between prefill pieces.

        Raises:
            RequestError, CapacityError: refused before prefill.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Snapshot:
    """What the worker has done and is doing, read at one moment. Counts cover every request that finished."""

    state: State
    reason: str  # why it is not ready; empty when ready
    queue_limit: int
    queued: int
    in_flight: int  # requests the thread is running now: 0 or 1
    completed: int
    failed: int  # ended by an exception
    refused: int  # turned away: queue full, or refused before prefill
    cancelled: int
    engaged: int  # finished requests that the acceptance law decided
    stood_aside: dict[str, int]  # reason -> finished requests that it did not decide
    notes: dict[str, int]  # request-time stand-asides of lanes, by reason
    totals: Counts
    last_line: str


@dataclass
class _Tally:
    completed: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    engaged: int = 0
    stood_aside: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    totals: Counts = field(default_factory=Counts)
    last_line: str = ""
    busy_seconds: float = 0.0
    served: int = 0


class Worker:
    """Owns the thread. The thread starts with the object; `wait_ready` waits until the generator is loaded."""

    def __init__(self, generator: Generator, queue_limit: int) -> None:
        """At most `queue_limit` requests wait beside the one that runs."""
        self._generator = generator
        self._queue_limit = queue_limit
        self._condition = threading.Condition()
        self._queue: deque[Ticket] = deque()
        self._running: Ticket | None = None
        self._state: State = "loading"
        self._reason = "the model is loading"
        self._load_error: BaseException | None = None
        self._tally = _Tally()
        self._thread = threading.Thread(target=self._main, name="mtrun-inference", daemon=True)
        self._thread.start()

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait for the load, `timeout` in seconds.

        Raises:
            MtrunError: what the load raised.
            EngineStoppedError: the thread ended otherwise, or the load took longer than `timeout`.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: self._state != "loading", timeout):
                raise EngineStoppedError(f"The model did not load within {timeout} s: wait longer and ask /health.")
            state, error = self._state, self._load_error
        if isinstance(error, MtrunError):
            raise error
        if state != "ready":
            raise EngineStoppedError(self._stopped_message()) from error

    def submit(self, request: GenerationRequest) -> Ticket:
        """Queue a request.

        Raises:
            CapacityError: the queue is full; `retry_after` estimates when it is not.
            EngineStoppedError: loading, shutting down or dead.
        """
        with self._condition:
            if self._state != "ready":
                raise EngineStoppedError(self._stopped_message())
            idle = self._running is None  # an idle thread takes one at once: that one does not wait
            if len(self._queue) >= self._queue_limit + idle:
                self._tally.refused += 1
                raise CapacityError(
                    f"The queue is full ({self._queue_limit} waiting): send the request again later.",
                    retry_after=self._retry_after(),
                )
            ticket = Ticket(request, self._forget)
            self._queue.append(ticket)
            self._condition.notify_all()
            return ticket

    def stop(self, grace_seconds: float) -> None:
        """Take no new work, finish what was accepted within `grace_seconds`, cancel the rest, end the thread."""
        with self._condition:
            if self._state != "dead":
                self._state, self._reason = "stopping", "the server is shutting down"
            self._condition.notify_all()
        self._thread.join(grace_seconds)
        if self._thread.is_alive():
            self.cancel_all()
            self._thread.join(_LAST_CYCLE_SECONDS)

    def cancel_all(self) -> None:
        """Fail every waiting request and stop the running one before its next cycle."""
        with self._condition:
            waiting, running = self._empty_queue(), self._running
        for ticket in waiting:
            ticket.end(EngineStoppedError("The server cancelled this request before it ran: send it again later."))
        if running is not None:
            running.cancel()

    def snapshot(self) -> Snapshot:
        with self._condition:
            tally = self._tally
            return Snapshot(
                state=self._state,
                reason=self._reason,
                queue_limit=self._queue_limit,
                queued=len(self._queue),
                in_flight=int(self._running is not None),
                completed=tally.completed,
                failed=tally.failed,
                refused=tally.refused,
                cancelled=tally.cancelled,
                engaged=tally.engaged,
                stood_aside=dict(tally.stood_aside),
                notes=dict(tally.notes),
                totals=_summed(Counts(), tally.totals),
                last_line=tally.last_line,
            )

    def _main(self) -> None:
        try:
            try:
                self._generator.load()
            except BaseException as error:
                self._load_error = error
                raise
            self._become_ready()
            while (ticket := self._next()) is not None:
                self._serve(ticket)
        except BaseException as error:  # whatever ends this thread must reach the callers that wait for it
            self._die(f"{type(error).__name__}: {error}"[:300], error)
        else:
            self._die("the server has shut down", None)

    def _become_ready(self) -> None:
        with self._condition:
            if self._state == "loading":
                self._state, self._reason = "ready", ""
            self._condition.notify_all()

    def _next(self) -> Ticket | None:
        """The next ticket, None when the worker is stopping and the queue is empty."""
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self._state == "stopping")
            if not self._queue:
                return None
            ticket = self._queue.popleft()
            ticket.started = time.monotonic()
            self._running = ticket
            return ticket

    def _serve(self, ticket: Ticket) -> None:
        """Run one request. Counted before its last event is pushed, so that /health is never behind the client."""
        try:
            finished = self._drive(ticket)
            self._count(ticket.request, finished)
        except Exception as error:
            self._settle(ticket, error)
            ticket.end(error)
        else:
            self._settle(ticket, None)
            ticket.push(finished)
            ticket.end()

    def _drive(self, ticket: Ticket) -> Finished:
        events = self._generator.run(ticket.request, ticket.is_cancelled)
        try:
            for event in events:
                if isinstance(event, Finished):
                    return event
                ticket.push(event)
        finally:
            close = getattr(events, "close", None)  # a plain iterator has none
            if close is not None:
                close()
        raise RuntimeError("the generator ended without a Finished event")

    def _count(self, request: GenerationRequest, finished: Finished) -> None:
        verdict = f"{accept_line(finished.law, finished.counts)} request={request.id}"
        with self._condition:
            tally = self._tally
            if finished.reason == "cancelled":
                tally.cancelled += 1
            else:
                tally.completed += 1
            if finished.law.engaged:
                tally.engaged += 1
            else:
                _count_reason(tally.stood_aside, finished.law.reason)
            for note in finished.notes:
                _count_reason(tally.notes, note)
            tally.totals = _summed(tally.totals, finished.counts)
            tally.last_line = verdict
        logger.info("%s", verdict)

    def _settle(self, ticket: Ticket, error: BaseException | None) -> None:
        with self._condition:
            self._running = None
            self._tally.served += 1
            self._tally.busy_seconds += time.monotonic() - (ticket.started or ticket.submitted)
            if isinstance(error, RequestError | CapacityError):
                self._tally.refused += 1
            elif error is not None:
                self._tally.failed += 1
        if error is not None and not isinstance(error, MtrunError):
            # The message of a foreign exception may quote the prompt: the log gets its type and place alone.
            place = "".join(traceback.format_tb(error.__traceback__)[-3:])
            logger.error("request %s failed with %s\n%s", ticket.request.id, type(error).__name__, place)
        if error is not None:
            traceback.clear_frames(error.__traceback__)  # frees the arrays that the failed cycle still holds

    def _forget(self, ticket: Ticket) -> None:
        """A ticket was cancelled: drop it if it waits; the running one sees its own flag."""
        with self._condition:
            if ticket not in self._queue:
                return
            self._queue.remove(ticket)
            self._tally.cancelled += 1
        ticket.end()

    def _die(self, reason: str, error: BaseException | None) -> None:
        with self._condition:
            self._state, self._reason = "dead", reason
            waiting = self._empty_queue()
            if self._running is not None:  # the request that the thread died in
                waiting.insert(0, self._running)
                self._running = None
                self._tally.failed += 1
            self._condition.notify_all()
        if error is not None:
            logger.critical("the inference thread ended: %s", reason)
        for ticket in waiting:
            ticket.end(EngineStoppedError(self._stopped_message()))
        try:
            self._generator.close()
        except Exception as raised:
            logger.error("closing the generator failed with %s", type(raised).__name__)

    def _empty_queue(self) -> list[Ticket]:
        waiting = list(self._queue)
        self._queue.clear()
        self._tally.failed += len(waiting)
        return waiting

    def _stopped_message(self) -> str:
        if self._state == "loading":
            return "The model is still loading: send the request again in a few seconds."
        if self._state == "stopping":
            return "The server is shutting down: send the request to a server that is running."
        return f"The inference thread is not running ({self._reason}): start the server again."

    def _retry_after(self) -> int:
        """Seconds until one place is likely free: the mean time of a request so far."""
        mean = self._tally.busy_seconds / self._tally.served if self._tally.served else 1.0
        return max(1, min(_LONGEST_RETRY, math.ceil(mean)))


def _count_reason(reasons: dict[str, int], reason: str) -> None:
    key = reason if reason in reasons or len(reasons) < _MOST_REASONS else "other reasons"
    reasons[key] = reasons.get(key, 0) + 1


def _summed(total: Counts, part: Counts) -> Counts:
    """The two added, as a new object: readers of the old one are not disturbed."""
    result = copy.deepcopy(total)
    result.add(part)
    return result
