"""A ticket: one request's place in the queue and the stream of its events.

The inference thread writes, one reader reads, from a plain thread (`for event in ticket`) or from asyncio
(`async for event in ticket`). The last event is `Finished`; a failed request raises its error instead. A request that
was cancelled while it waited ends with no event at all.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

from mtrun.runtime.requests import Event, GenerationRequest


class Ticket:
    """Events of one submitted request. Thread-safe; made by `Worker.submit`, read by one reader."""

    def __init__(self, request: GenerationRequest, forget: Callable[[Ticket], None]) -> None:
        """`forget` is called once, on the first cancel, so that a waiting request leaves the queue at once."""
        self.request = request
        self.submitted = time.monotonic()  # seconds
        self.started: float | None = None  # seconds, None while it waits
        self._forget = forget
        self._condition = threading.Condition()
        self._events: deque[Event] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._cancelled = False
        self._wake: Callable[[], None] | None = None

    @property
    def queue_seconds(self) -> float:
        """Time spent waiting for the inference thread."""
        return (self.started if self.started is not None else time.monotonic()) - self.submitted

    def cancel(self) -> None:
        """Leave the queue at once, or stop before the next cycle. Safe to call from any thread, any number of times."""
        with self._condition:
            if self._cancelled or self._ended:
                return
            self._cancelled = True
        self._forget(self)

    def is_cancelled(self) -> bool:
        return self._cancelled

    def push(self, event: Event) -> None:
        """Add an event; for the inference thread."""
        with self._condition:
            self._events.append(event)
        self._announce()

    def end(self, error: BaseException | None = None) -> None:
        """Close the stream; readers see the events already pushed, then the error if there is one."""
        with self._condition:
            if self._ended:
                return
            self._ended, self._error = True, error
        self._announce()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        with self._condition:
            self._condition.wait_for(lambda: self._events or self._ended)
            if self._events:
                return self._events.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """The next event. A cancelled wait loses nothing: the event stays for the next call."""
        loop = asyncio.get_running_loop()
        while True:
            with self._condition:
                if self._events:
                    return self._events.popleft()
                if self._ended:
                    break
                ready = asyncio.Event()
                self._wake = partial(_set_in_loop, loop, ready)
            await ready.wait()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def _announce(self) -> None:
        with self._condition:
            self._condition.notify_all()
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()


def _set_in_loop(loop: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(ready.set)
    except RuntimeError:
        return  # the reader's loop is closed: nobody waits any more
