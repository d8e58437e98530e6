"""The inference thread: order, isolation, cancel, death, shutdown, and tickets read from threads and from asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.errors import CapacityError, EngineStoppedError, LaneError, RequestError
from mtrun.runtime.requests import Chunk, Event, Finished, GenerationRequest, LawReport, Prefill, Sampling
from mtrun.runtime.ticket import Ticket
from mtrun.runtime.worker import Worker

ENGAGED = LawReport("exact", None, {}, True, True, "the law judged every draft")
GREEDY = LawReport("exact", None, {}, True, False, "temperature 0")


@dataclass
class Steps:
    """Emits `cycles` chunks; each waits for `gate`. A request named in `faults` raises after its first chunk."""

    cycles: int = 3
    faults: dict[str, BaseException] = field(default_factory=dict)
    law: LawReport = ENGAGED
    load_error: BaseException | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    order: list[str] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    closed: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def load(self) -> None:
        self.threads.add(threading.current_thread().name)
        if self.load_error is not None:
            raise self.load_error

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.closed += 1

    def run(self, request: GenerationRequest, cancelled: Callable[[], bool]) -> Iterator[Event]:
        self.threads.add(threading.current_thread().name)
        self.order.append(request.id)
        yield Prefill(1, 1)
        made = 0
        while made < self.cycles and not cancelled():
            while not self.gate.wait(0.005) and not cancelled():
                continue
            yield Chunk(f"{request.id}{made}", (made,))
            made += 1
            if request.id in self.faults:
                raise self.faults[request.id]
        counts = Counts(cycles=made, positions=made, accepted=made, accepted_by_depth=[made], generated=made)
        yield Finished("cancelled" if cancelled() else "stop", 1, made, 7, self.law, counts, 0.0, 0.0, ("a note",))


@pytest.fixture
def launch() -> Iterator[Callable[..., Worker]]:
    workers: list[tuple[Worker, Steps]] = []

    def make(steps: Steps, queue_limit: int = 8) -> Worker:
        worker = Worker(steps, queue_limit)
        workers.append((worker, steps))
        return worker

    yield make
    for worker, steps in workers:
        steps.gate.set()
        worker.stop(2.0)
        assert worker.snapshot().state == "dead"
        assert steps.closed == 1


def request(name: str) -> GenerationRequest:
    return GenerationRequest(name, (1,), Sampling())


def text(ticket: Ticket) -> str:
    return "".join(event.text for event in ticket if isinstance(event, Chunk))


def until(read: Callable[[], object], seconds: float = 3.0) -> None:
    end = time.monotonic() + seconds
    while not read():
        assert time.monotonic() < end, "not so in time"
        time.sleep(0.002)


def test_one_thread_loads_runs_and_closes(launch: Callable[..., Worker]) -> None:
    steps = Steps()
    worker = launch(steps)
    worker.wait_ready(2.0)
    assert text(worker.submit(request("a"))) == "a0a1a2"
    worker.stop(1.0)
    assert steps.threads == {"mtrun-inference"}


def test_requests_run_in_the_order_they_came(launch: Callable[..., Worker]) -> None:
    steps = Steps()
    worker = launch(steps)
    worker.wait_ready(2.0)
    steps.gate.clear()
    tickets = [worker.submit(request(name)) for name in "abcdef"]
    steps.gate.set()
    assert [text(ticket) for ticket in tickets] == [f"{name}0{name}1{name}2" for name in "abcdef"]
    assert steps.order == list("abcdef")


def test_the_counts_are_there_before_the_last_event(launch: Callable[..., Worker]) -> None:
    worker = launch(Steps())
    worker.wait_ready(2.0)
    for number in range(1, 4):
        assert isinstance(list(worker.submit(request("a")))[-1], Finished)
        now = worker.snapshot()
        assert (now.completed, now.in_flight, now.engaged) == (number, 0, number)
        assert now.totals.accepted_by_depth == [3 * number]
        assert now.notes == {"a note": number}
        assert now.last_line.startswith("[exact-accept] distribution-exact")


def test_a_law_that_did_not_decide_is_counted_with_its_reason(launch: Callable[..., Worker]) -> None:
    worker = launch(Steps(law=GREEDY))
    worker.wait_ready(2.0)
    text(worker.submit(request("a")))
    assert worker.snapshot().engaged == 0
    assert worker.snapshot().stood_aside == {"temperature 0": 1}


def test_a_full_queue_refuses_with_an_estimate(launch: Callable[..., Worker]) -> None:
    steps = Steps()
    worker = launch(steps, queue_limit=2)
    worker.wait_ready(2.0)
    steps.gate.clear()
    worker.submit(request("running"))
    until(lambda: worker.snapshot().in_flight)
    waiting = [worker.submit(request(name)) for name in "ab"]
    with pytest.raises(CapacityError, match="queue is full") as caught:
        worker.submit(request("c"))
    assert caught.value.retry_after is not None
    assert caught.value.retry_after >= 1
    waiting[0].cancel()
    worker.submit(request("d"))


def test_a_limit_of_zero_still_serves_one_at_a_time(launch: Callable[..., Worker]) -> None:
    steps = Steps()
    worker = launch(steps, queue_limit=0)
    worker.wait_ready(2.0)
    assert text(worker.submit(request("a"))) == "a0a1a2"
    steps.gate.clear()
    worker.submit(request("b"))
    until(lambda: worker.snapshot().in_flight)
    with pytest.raises(CapacityError):
        worker.submit(request("c"))


def test_a_cancelled_waiting_request_ends_at_once_and_never_runs(launch: Callable[..., Worker]) -> None:
    steps = Steps()
    worker = launch(steps)
    worker.wait_ready(2.0)
    steps.gate.clear()
    first, second, third = (worker.submit(request(name)) for name in "abc")
    until(lambda: worker.snapshot().in_flight)
    second.cancel()
    second.cancel()
    assert list(second) == []
    assert worker.snapshot().queued == 1
    steps.gate.set()
    assert (text(first), text(third)) == ("a0a1a2", "c0c1c2")
    assert steps.order == ["a", "c"]
    assert worker.snapshot().cancelled == 1


def test_a_cancelled_running_request_stops_between_cycles(launch: Callable[..., Worker]) -> None:
    worker = launch(Steps(cycles=10**9))
    worker.wait_ready(2.0)
    ticket = worker.submit(request("a"))
    until(lambda: worker.snapshot().in_flight)
    ticket.cancel()
    *_, last = ticket
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"
    assert worker.snapshot().cancelled == 1


def test_a_fault_fails_its_request_alone(launch: Callable[..., Worker]) -> None:
    fault = ValueError("state is broken")
    worker = launch(Steps(faults={"c": fault}))
    worker.wait_ready(2.0)
    tickets = [worker.submit(request(name)) for name in "abcde"]
    for ticket in tickets[:2] + tickets[3:]:
        assert text(ticket).startswith(ticket.request.id)
    with pytest.raises(ValueError, match="state is broken"):
        text(tickets[2])
    now = worker.snapshot()
    assert (now.state, now.completed, now.failed) == ("ready", 4, 1)


def test_a_failed_request_lets_go_of_what_its_frames_held(launch: Callable[..., Worker]) -> None:
    error = ValueError()
    worker = launch(Steps(faults={"a": error}))
    worker.wait_ready(2.0)
    with pytest.raises(ValueError):  # noqa: PT011 - any, it is the frames that matter
        text(worker.submit(request("a")))
    trace = error.__traceback__
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    assert all("cancelled" not in frame.f_locals for frame in frames if frame.f_code.co_name == "run")


def test_a_refusal_before_prefill_is_no_failure(launch: Callable[..., Worker]) -> None:
    worker = launch(Steps(faults={"a": RequestError("no", "top_k")}))
    worker.wait_ready(2.0)
    with pytest.raises(RequestError):
        text(worker.submit(request("a")))
    assert (worker.snapshot().refused, worker.snapshot().failed) == (1, 0)


def test_a_generator_that_forgets_to_finish_is_a_failure(launch: Callable[..., Worker]) -> None:
    class Forgetful(Steps):
        def run(self, request: GenerationRequest, cancelled: Callable[[], bool]) -> Iterator[Event]:
            return iter([Chunk("a", (1,))])

    worker = launch(Forgetful())
    worker.wait_ready(2.0)
    with pytest.raises(RuntimeError, match="without a Finished"):
        text(worker.submit(request("a")))


def test_a_thread_that_dies_fails_all_who_wait_and_all_who_come(launch: Callable[..., Worker]) -> None:
    steps = Steps(faults={"a": SystemExit("killed")})
    worker = launch(steps)
    worker.wait_ready(2.0)
    steps.gate.clear()
    tickets = [worker.submit(request(name)) for name in "abc"]
    steps.gate.set()
    for ticket in tickets:
        with pytest.raises(EngineStoppedError):
            text(ticket)
    now = worker.snapshot()
    assert (now.state, now.in_flight, now.queued, now.failed) == ("dead", 0, 0, 3)
    assert "SystemExit" in now.reason
    with pytest.raises(EngineStoppedError, match="SystemExit"):
        worker.submit(request("d"))


def test_a_failed_load_reaches_whoever_waits_for_it(launch: Callable[..., Worker]) -> None:
    worker = launch(Steps(load_error=LaneError("frspec failed its proof")))
    with pytest.raises(LaneError, match="frspec"):
        worker.wait_ready(2.0)
    with pytest.raises(EngineStoppedError):
        worker.submit(request("a"))
    foreign = launch(Steps(load_error=MemoryError("no room")))
    with pytest.raises(EngineStoppedError, match="MemoryError"):
        foreign.wait_ready(2.0)


def test_nothing_is_taken_while_loading(launch: Callable[..., Worker]) -> None:
    gate = threading.Event()

    class Slow(Steps):
        def load(self) -> None:
            gate.wait()

    worker = launch(Slow())
    with pytest.raises(EngineStoppedError, match="still loading"):
        worker.submit(request("a"))
    with pytest.raises(EngineStoppedError, match="did not load within"):
        worker.wait_ready(0.01)
    gate.set()
    worker.wait_ready(2.0)
    assert text(worker.submit(request("a"))) == "a0a1a2"


def test_stop_drains_what_was_accepted_and_takes_nothing_new(launch: Callable[..., Worker]) -> None:
    steps = Steps()
    worker = launch(steps)
    worker.wait_ready(2.0)
    steps.gate.clear()
    tickets = [worker.submit(request(name)) for name in "ab"]
    stopping = threading.Thread(target=worker.stop, args=(5.0,))
    stopping.start()
    until(lambda: worker.snapshot().state == "stopping")
    with pytest.raises(EngineStoppedError, match="shutting down"):
        worker.submit(request("c"))
    steps.gate.set()
    assert [text(ticket) for ticket in tickets] == ["a0a1a2", "b0b1b2"]
    stopping.join(2.0)
    assert worker.snapshot().state == "dead"


def test_stop_cancels_what_outlasts_the_grace(launch: Callable[..., Worker]) -> None:
    steps = Steps(cycles=10**9)
    worker = launch(steps)
    worker.wait_ready(2.0)
    running, waiting = worker.submit(request("a")), worker.submit(request("b"))
    until(lambda: worker.snapshot().in_flight)
    worker.stop(0.05)
    assert worker.snapshot().state == "dead"
    *_, last = running
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"
    with pytest.raises(EngineStoppedError):
        list(waiting)


def test_a_ticket_is_read_from_asyncio_with_nothing_lost(launch: Callable[..., Worker]) -> None:
    steps = Steps(cycles=200)
    worker = launch(steps)
    worker.wait_ready(2.0)

    async def read(name: str) -> tuple[str, int]:
        ticket, parts, timeouts = worker.submit(request(name)), [], 0
        while True:
            try:
                async with asyncio.timeout(0.0005):  # a reader that keeps giving up and coming back
                    event = await anext(ticket)
            except TimeoutError:
                timeouts += 1
                continue
            except StopAsyncIteration:
                return "".join(parts), timeouts
            if isinstance(event, Chunk):
                parts.append(event.text)

    async def both() -> list[tuple[str, int]]:
        threading.Timer(0.02, steps.gate.set).start()
        return await asyncio.gather(read("a"), read("b"))

    steps.gate.clear()
    results = asyncio.run(both())
    for name, (joined, _) in zip("ab", results, strict=True):
        assert joined == "".join(f"{name}{i}" for i in range(200))
    assert results[0][1] > 0


def test_an_error_reaches_an_asyncio_reader_after_the_events_before_it(launch: Callable[..., Worker]) -> None:
    worker = launch(Steps(faults={"a": ValueError("broken")}))
    worker.wait_ready(2.0)

    async def read() -> list[Event]:
        ticket = worker.submit(request("a"))
        seen = [await anext(ticket), await anext(ticket)]
        with pytest.raises(ValueError, match="broken"):
            await anext(ticket)
        return seen

    assert asyncio.run(read()) == [Prefill(1, 1), Chunk("a0", (0,))]


def test_a_reader_whose_loop_is_gone_does_no_harm(launch: Callable[..., Worker]) -> None:
    steps = Steps()
    worker = launch(steps)
    worker.wait_ready(2.0)
    steps.gate.clear()
    ticket = worker.submit(request("a"))

    async def leave() -> None:
        await anext(ticket)  # the prefill event; the next one waits for the gate
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(ticket), 0.02)

    asyncio.run(leave())
    steps.gate.set()
    assert text(worker.submit(request("b"))) == "b0b1b2"


def test_eight_threads_of_requests_with_random_cancels_leave_nothing_behind(launch: Callable[..., Worker]) -> None:
    worker = launch(Steps(cycles=5), queue_limit=64)
    worker.wait_ready(2.0)

    def client(number: int) -> None:
        for turn in range(25):
            ticket = worker.submit(request(f"{number}.{turn}."))
            if (number + turn) % 3 == 0:
                ticket.cancel()
            for event in ticket:
                assert not isinstance(event, Chunk) or event.text.startswith(ticket.request.id)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(20.0)
        assert not thread.is_alive()
    now = worker.snapshot()
    assert (now.in_flight, now.queued, now.failed) == (0, 0, 0)
    assert now.completed + now.cancelled == 200
