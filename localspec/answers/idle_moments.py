"""IdleMoments: what is done with an engine that nobody uses. Its weights are freed, and its costs measured."""

from __future__ import annotations

import weakref
from functools import partial

from localspec.answers.queue import AnswerQueue
from localspec.engine.idle import IdleTimer
from localspec.engine.kept import Keeper

QUIET_SECONDS = 1.0
"""How long nobody must have used an engine before what is uncertain of its costs is measured."""


class IdleMoments:
    """For as long as it is held, and until `stop`. Its timers keep neither it nor its holder alive.

    unload_after: seconds without use after which the weights are freed; None for never.
    """

    def __init__(self, queue: AnswerQueue, keeper: Keeper, unload_after: float | None) -> None:
        self._queue, self._keeper = queue, keeper
        self._may_measure = True
        self._timers: list[IdleTimer] = []
        if unload_after is not None:
            unload = partial(_unload, unload_after)
            self._timers.append(IdleTimer(self, unload, unload_after, "idle"))
        if keeper.may_measure:
            self._timers.append(IdleTimer(self, _measure, QUIET_SECONDS, "measuring"))
            weakref.finalize(self, queue.cancel_idle_turn).atexit = False

    def end_measuring(self) -> None:
        """Measure nothing from now on; waits for the end of what is measured."""
        self._may_measure = False
        self._queue.end_idle_turn()

    def stop(self) -> None:
        """Do nothing any more."""
        for timer in self._timers:
            timer.stop()

    @property
    def may_measure(self) -> bool:
        """Whether there is something to measure, and it is wanted."""
        return self._may_measure and self._keeper.may_measure


def _unload(seconds: float, reference: weakref.ref[IdleMoments]) -> float | None:
    """Free the weights if nobody used them for `seconds`; returns after how many to look again."""
    moments = reference()
    if moments is None:
        return None
    if moments._queue.if_idle(seconds, moments._keeper.unload):
        return seconds
    return max(seconds - moments._queue.idle_seconds, 0.001)


def _measure(reference: weakref.ref[IdleMoments]) -> float | None:
    """Measure a little if nobody used the engine for a while; returns when to look again, None for never.

    The holder is not kept alive by it: its end cancels the turn.
    """
    moments = reference()
    if moments is None:
        return None
    queue, keeper = moments._queue, moments._keeper
    with queue.idle_turn(QUIET_SECONDS) as turn:
        if turn is not None and moments.may_measure:
            moments = None
            keeper.measure_idly(lambda: turn.cancelled)
            keeper.keep_costs()
    moments = reference()
    return QUIET_SECONDS if moments is not None and moments.may_measure else None
