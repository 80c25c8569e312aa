"""AnswerQueue: whose turn it is on an engine that many threads use."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from localspec.answers.queue import AnswerQueue
from localspec.answers.request import Chunk, Completion
from localspec.answers.stream import AnswerStream, Item, Pump
from localspec.answers.ticket import Ticket
from localspec.decoding.stats import Stats
from localspec.errors import EngineBusy, EngineClosed

SECONDS = 60


@pytest.fixture
def queue() -> AnswerQueue:
    return AnswerQueue(threading.Event())


def queued(queue: AnswerQueue, count: int) -> None:
    """Wait until so many stand in the queue."""
    ends = time.monotonic() + SECONDS
    while len(queue._waiting) < count:
        assert time.monotonic() < ends
        time.sleep(0.001)


def in_turn(queue: AnswerQueue, took: list[int], number: int) -> threading.Thread:
    def take() -> None:
        with queue.admit(queue.ticket()):
            took.append(number)

    thread = threading.Thread(target=take)
    thread.start()
    return thread


@pytest.mark.parametrize("attempt", range(5))
def test_first_come_first_served(queue: AnswerQueue, attempt: int) -> None:
    took: list[int] = []
    threads = []
    with queue.admit(queue.ticket()):
        for number in range(12):
            threads.append(in_turn(queue, took, number))
            queued(queue, number + 1)
    for thread in threads:
        thread.join(SECONDS)
    assert took == list(range(12))


def test_one_that_gives_up_does_not_hold_up_the_others(queue: AnswerQueue) -> None:
    first = queue.ticket()
    took: list[int] = []
    with queue.admit(first):
        first.thread = threading.current_thread()
        with pytest.raises(EngineBusy), queue.admit(queue.ticket()):
            pass
        thread = in_turn(queue, took, 1)
        queued(queue, 1)
    thread.join(SECONDS)
    assert took == [1] and not queue._waiting


def test_who_waits_keeps_the_engine_from_being_unloaded_and_close_sends_them_away(queue: AnswerQueue) -> None:
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            with queue.admit(queue.ticket()):
                pass
        except EngineClosed as error:
            errors.append(error)

    with queue.admit(queue.ticket()):
        thread = threading.Thread(target=wait)
        thread.start()
        queued(queue, 1)
        assert queue.idle_seconds == 0
        queue._closing = True
        with queue._changed:
            queue._changed.notify_all()
        thread.join(SECONDS)
    assert len(errors) == 1 and not queue._waiting
    assert not queue.if_idle(0.0, lambda: errors.append(AssertionError()))


def test_one_that_is_cancelled_leaves_the_queue_at_once(queue: AnswerQueue) -> None:
    got: list[bool] = []
    ticket = queue.ticket()

    def wait() -> None:
        with queue.admit(ticket) as mine:
            got.append(mine)

    with queue.admit(queue.ticket()) as mine:
        assert mine
        thread = threading.Thread(target=wait)
        thread.start()
        queued(queue, 1)
        queue.cancel([ticket])
        thread.join(SECONDS)
        assert got == [False] and not queue._waiting
        assert not queue._flag.is_set()  # type: ignore[attr-defined]
    with queue.admit(queue.ticket()) as mine:
        assert mine


def test_cancel_all_stops_the_passes_of_who_has_the_engine_for_itself_and_lets_it_stay(
    queue: AnswerQueue,
) -> None:
    ticket = Ticket()
    with queue.admit(ticket) as mine:
        queue.cancel()
        assert mine and not ticket.cancelled and queue._flag.is_set()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["a short use", "an answer"])
def test_the_idle_time_begins_anew_behind_every_use(queue: AnswerQueue, kind: str) -> None:
    freed: list[int] = []
    queue._left -= 100
    assert queue.idle_seconds >= 100
    with queue.using() if kind == "a short use" else queue.admit(queue.ticket()):
        assert queue.idle_seconds == 0
        assert not queue.if_idle(0.0, lambda: freed.append(1))
    assert queue.idle_seconds < 50
    assert not queue.if_idle(50.0, lambda: freed.append(2)) and queue.if_idle(0.0, lambda: freed.append(3))
    assert freed == [3]


# The pump that reads answers for somebody elsewhere


class Answers:
    """Three answers of three chunks each, on one queue. begun: how many were started; complete: those told of."""

    def __init__(self, queue: AnswerQueue) -> None:
        self.begun = 0
        self.complete: list[Completion] = []
        self._queue = queue

    def start(self) -> AnswerStream:
        self.begun += 1
        ticket = self._queue.ticket()
        stream = AnswerStream(self._queue, ticket, self._chunks(ticket))
        return stream.when_complete(self.complete.append)

    def _chunks(self, ticket: Ticket) -> Iterator[Chunk]:
        with self._queue.admit(ticket) as mine:
            said: list[int] = []
            while mine and len(said) < 3 and not ticket.cancelled:
                said.append(len(said))
                yield Chunk(f"{said[-1]}", (said[-1],))
            reason = "cancelled" if ticket.cancelled else "stop"
            yield Chunk("", (), Completion("", tuple(said), reason, Stats(), None, "off"))


@pytest.mark.parametrize("told", ["cancel", "abandon", ""])
@pytest.mark.parametrize("moment", [0, 1, 2, 5])
def test_a_pump_that_is_told_to_end_ends_its_answer_and_begins_no_other(
    queue: AnswerQueue, told: str, moment: int
) -> None:
    """At any moment, also before the first answer began (0). Told of a completion is who has read the answer's end."""
    answers, items = Answers(queue), []  # type: ignore[var-annotated]

    def deliver(item: Item) -> bool:
        items.append(item)
        if told and len(items) == moment:
            getattr(pump, told)()
        return True

    pump = Pump([answers.start] * 3, deliver)
    if told and not moment:
        getattr(pump, told)()
    pump.run()
    completions = [
        event[1].completion for item in items if (event := pump.received(item)) and event[1].completion
    ]
    if not told:
        assert (
            [completion.finish_reason for completion in completions]
            == ["stop"] * 3
            == ["stop"] * answers.begun
        )
        assert answers.complete == completions and items[-1] is None
        return
    begun = 2 if moment == 5 else 1
    assert answers.begun == begun
    assert len(completions[-1].ids) == (moment - 4 if moment == 5 else moment)
    assert completions[-1].finish_reason == "cancelled"
    assert answers.complete == (completions if told == "cancel" else [])
    with queue.admit(queue.ticket()) as mine:
        assert mine, "the engine is free"


@pytest.mark.skipif(sys.platform == "win32", reason="has no timer that raises signals")
def test_an_interrupt_at_any_moment_leaves_no_lock_and_nobody_behind(queue: AnswerQueue) -> None:
    """Hundreds of them: one in twenty left the lock taken, and one in seven a user that never went."""
    armed, interrupts, faults = False, 0, []

    def interrupt(number: int, frame: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while interrupts < 1000:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3), 1e-3)
            try:
                armed = True
                while armed:
                    with queue.using():
                        pass
                    with queue.admit(queue.ticket()):
                        pass
            except KeyboardInterrupt:
                interrupts += 1
            if queue._lock._is_owned():  # type: ignore[attr-defined]
                faults.append("lock")
                queue._lock.release()
            faults += [str(left) for left in (queue._users, queue._running, queue._waiting) if left]
            queue._users.clear(), queue._running.clear(), queue._waiting.clear()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert not faults, f"{len(faults)} of {interrupts}: {faults[:3]}"
