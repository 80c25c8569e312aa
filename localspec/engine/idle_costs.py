"""IdleCalibration: measures what passes cost in moments when nobody computes, a little each time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from localspec.decoding.calibrate import Calibrator
from localspec.engine.engine import Engine
from localspec.engine.measured_costs import Costs, Role, roles
from localspec.errors import DecodeCancelled, LocalspecError

IDLE_SECONDS = 8.0
"""Seconds of measuring after a load, in all its idle moments together."""
DRAFT_SHARE = 0.35
"""Of them for the draft, which comes first: its passes are short, and plain decoding says nothing of them."""
REPEATS = 2
LEAST_ROOM = 8
"""Free cells without which nothing is measured behind a conversation."""
log = logging.getLogger(__name__)


class IdleCalibration:
    """What it may still measure of one loaded engine. A conversation in the cells stays there."""

    def __init__(self, seconds: float = IDLE_SECONDS, clock: Callable[[], float] = time.perf_counter) -> None:
        self._left = seconds
        self._for_draft = DRAFT_SHARE * seconds
        self._clock = clock
        self.over = False

    def visit(self, engine: Engine, costs: Costs, stop: Callable[[], bool]) -> None:
        """Measure until `stop`, which is asked after every pass, or until nothing is left to do: then it is `over`.

        For whoever has the engine's turn. A pass that is cancelled meanwhile ends it too.
        """
        for role in sorted(roles(engine, costs), key=lambda role: role.verifies):
            if not (role.table.certain or self.over or stop()):
                self._measure(role, stop)
        open_ = [role for role in roles(engine, costs) if not role.table.certain and self._seconds(role) > 0]
        self.over = self.over or not open_

    def _seconds(self, role: Role) -> float:
        return self._left if role.verifies else min(self._left, self._for_draft)

    def _measure(self, role: Role, stop: Callable[[], bool]) -> None:
        context, session = role.context, role.session
        seconds = self._seconds(role)
        held = _cut(role, 0 if session is None else len(session.tokens))
        if context.n_ctx - held < LEAST_ROOM or seconds <= 0:
            return
        started = self._clock()
        calibrator = Calibrator(
            context,
            verifies=role.verifies,
            min_width=role.min_width,
            held=held,
            known=role.table,
            clock=self._clock,
        )
        try:
            for _ in calibrator.passes(REPEATS, seconds):
                if stop() or self._clock() - started > seconds:
                    break
        except DecodeCancelled:
            pass
        except Exception as error:  # nobody waits for it, and nobody could be told
            log.info("costs are not measured: %s", error, exc_info=not isinstance(error, LocalspecError))
            self.over = True
        finally:
            _cut(role, held)
            spent = self._clock() - started
            self._left -= spent
            if not role.verifies:
                self._for_draft -= spent
        if calibrator.has_begun:
            found = calibrator.result()
            log.info("measured passes of %s, spread %.2f", context.weights.path.name, found.spread)
            role.take_over(found)


def _cut(role: Role, length: int) -> int:
    """Forget the cells from `length` on; returns how many are left, which the session then knows too."""
    kept = role.context.truncate(0, length)
    if role.session is not None:
        del role.session.tokens[kept:]
    return kept
