"""Turns: whose turn it is on an engine that many threads use."""

from __future__ import annotations

import threading
import time

import pytest

from localspec.answers.queue import Ticket, Turns
from localspec.errors import EngineBusy, EngineClosed

SECONDS = 60


@pytest.fixture
def turns() -> Turns:
    return Turns(threading.Event())


def queued(turns: Turns, count: int) -> None:
    """Wait until so many stand in the queue."""
    ends = time.monotonic() + SECONDS
    while len(turns._queue) < count:
        assert time.monotonic() < ends
        time.sleep(0.001)


def in_turn(turns: Turns, took: list[int], number: int) -> threading.Thread:
    def take() -> None:
        with turns.turn(turns.ticket()):
            took.append(number)

    thread = threading.Thread(target=take)
    thread.start()
    return thread


@pytest.mark.parametrize("attempt", range(5))
def test_first_come_first_served(turns: Turns, attempt: int) -> None:
    took: list[int] = []
    threads = []
    with turns.turn(turns.ticket()):
        for number in range(12):
            threads.append(in_turn(turns, took, number))
            queued(turns, number + 1)
    for thread in threads:
        thread.join(SECONDS)
    assert took == list(range(12))


def test_one_that_gives_up_does_not_hold_up_the_others(turns: Turns) -> None:
    first = turns.ticket()
    took: list[int] = []
    with turns.turn(first):
        first.thread = threading.current_thread()
        with pytest.raises(EngineBusy), turns.turn(turns.ticket()):
            pass
        thread = in_turn(turns, took, 1)
        queued(turns, 1)
    thread.join(SECONDS)
    assert took == [1] and not turns._queue


def test_who_waits_keeps_the_engine_from_being_unloaded_and_close_sends_them_away(turns: Turns) -> None:
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            with turns.turn(turns.ticket()):
                pass
        except EngineClosed as error:
            errors.append(error)

    with turns.turn(turns.ticket()):
        thread = threading.Thread(target=wait)
        thread.start()
        queued(turns, 1)
        assert turns.idle_seconds == 0
        turns._closing = True
        with turns._changed:
            turns._changed.notify_all()
        thread.join(SECONDS)
    assert len(errors) == 1 and not turns._queue
    assert not turns.if_idle(0.0, lambda: errors.append(AssertionError()))


def test_one_that_is_cancelled_leaves_the_queue_at_once(turns: Turns) -> None:
    got: list[bool] = []
    ticket = turns.ticket()

    def wait() -> None:
        with turns.turn(ticket) as mine:
            got.append(mine)

    with turns.turn(turns.ticket()) as mine:
        assert mine
        thread = threading.Thread(target=wait)
        thread.start()
        queued(turns, 1)
        turns.cancel([ticket])
        thread.join(SECONDS)
        assert got == [False] and not turns._queue
        assert not turns._flag.is_set()  # type: ignore[attr-defined]
    with turns.turn(turns.ticket()) as mine:
        assert mine


def test_cancel_all_stops_the_passes_of_who_has_the_engine_for_itself_and_lets_it_stay(turns: Turns) -> None:
    ticket = Ticket()
    with turns.turn(ticket) as mine:
        turns.cancel()
        assert mine and not ticket.cancelled and turns._flag.is_set()  # type: ignore[attr-defined]
