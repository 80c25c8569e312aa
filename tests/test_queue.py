"""AnswerQueue: whose turn it is on an engine that many threads use."""

from __future__ import annotations

import threading
import time

import pytest

from localspec.answers.queue import AnswerQueue, Ticket
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
