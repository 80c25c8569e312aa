"""ThreadControl: how many threads a pass has, as others use the processors.

The threads of a pass wait for each other in a loop many times. Where one of them has no processor for itself all others
wait until it gets one: with a busy neighbour on each core a pass was seen to take 45 times as long, and with one thread
only 1.6 times. So a pass has as many threads as there is room for. The count costs nothing to change between passes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

MEMORY, LEAST = 0.5, 0.25
"""Seconds over which the work of others is averaged, and the least of them that say anything: on a desktop somebody
always works for a moment. A pass that collapses takes longer than that."""
SLACK = 0.3
"""Share of a processor that others may always use beside as many threads as there are processors."""
FREER = 0.8
"""Of what others may use, what they may where there are to be more threads: a neighbour in between changes nothing."""
HOLD, MOST_HOLD = 1.0, 32.0
"""Seconds for which processors must have been free before threads are added. Doubled, up to the most, where threads
that were added had to go soon: neighbours that come and go."""
SOON = 8
"""Times the hold: who had to go within this had to go soon."""
SLOW, COLLAPSED = 3.0, 8.0
"""Times what is expected: of two passes in a row, or of one, for which there was no room though none was seen to work
there: a system may hide others."""
STALL = 0.1
"""Seconds that a pass takes at least where its threads wait for one without a processor, again and again."""


class Glance(Protocol):
    """What the processors that this process may use have done up to a moment, in seconds."""

    @property
    def at(self) -> float:
        """The moment."""

    @property
    def busy(self) -> float:
        """Work of all of them together, for whomever."""

    @property
    def own(self) -> float:
        """This process's part of it."""


class Threaded(Protocol):
    """A context whose number of threads can be changed between passes."""

    def set_threads(self, count: int) -> None:
        """How many the next passes have."""


class ThreadControl:
    """Decides before each pass, for all contexts that it governs.

    most: threads where nobody else computes. processors: those there are for this process, second threads of cores
    counted as well. look: a glance at them. allowed: counts to choose from, with `most` among them; by default all.
    before: an earlier glance, so that the first pass can be decided on.
    count: threads of the next pass.
    """

    def __init__(
        self,
        most: int,
        processors: int,
        look: Callable[[], Glance],
        allowed: Sequence[int] = (),
        before: Glance | None = None,
    ) -> None:
        self.most = self.count = most
        self._counts = sorted({most, *(allowed or range(1, most + 1))})
        self._processors = processors
        self._look = look
        self._contexts: list[Threaded] = []
        self._glances = deque([before or look()])
        self._hold = HOLD
        self._raised_at: float | None = None
        self._free_since: float | None = None
        self._num_slow = 0

    def govern(self, context: Threaded) -> None:
        """Give this context too as many threads as are decided on."""
        self._contexts.append(context)
        context.set_threads(self.count)

    def release(self, context: Threaded) -> None:
        """It is closed."""
        self._contexts.remove(context)

    def decide(self) -> int:
        """Look around, and let the next pass have as many threads as there is room for."""
        now = self._look()
        if len(self._counts) == 1 or now.at <= self._glances[-1].at:
            return self.count
        self._glances.append(now)
        while self._glances[1].at <= now.at - MEMORY:
            self._glances.popleft()
        if now.at - self._glances[0].at >= LEAST:
            room = self._room(self._others())
            if room < self.count:
                self._lower(room)
            elif self.count < self.most:
                self._consider_more()
        return self.count

    def judge(self, seconds: float, expected: float) -> bool:
        """Told what the last pass took and what is expected with its threads; whether there was no room for them."""
        count, slowdown = self.count, seconds / expected if seconds >= STALL else 1.0
        self._num_slow = self._num_slow + 1 if slowdown >= SLOW else 0
        if self.decide() >= count > self._counts[0] and (self._num_slow > 1 or slowdown >= COLLAPSED):
            self._lower(max(fewer for fewer in self._counts if fewer <= max(count // 2, self._counts[0])))
        return self.count < count

    def _others(self) -> float:
        """Processors that others used lately. What this process computes beside its passes is such work too; not what
        it computes while this control has none, such as the passes of another engine.
        """
        glances = list(self._glances)
        beside = alone = passing = 0.0
        for since, now in itertools.pairwise(glances):
            own, seconds = now.own - since.own, now.at - since.at
            if seconds > MEMORY:
                alone += own
            else:
                beside, passing = beside + own, passing + seconds
        work = glances[-1].busy - glances[0].busy - alone - min(beside, self.count * passing)
        return max(work / (glances[-1].at - glances[0].at), 0.0)

    def _room(self, others: float, share: float = 1.0) -> int:
        """Threads beside others who use so many processors: one that is used a little is worth more than none."""
        fits = (
            count
            for count in reversed(self._counts)
            if others <= self._processors - count + share * max(1 / count, SLACK)
        )
        return next(fits, self._counts[0])

    def _consider_more(self) -> None:
        room, now = self._room(self._others(), FREER), self._glances[-1].at
        if room <= self.count:
            self._free_since = None
            return
        self._free_since = self._glances[0].at if self._free_since is None else self._free_since
        if now - self._free_since >= self._hold:
            self._raised_at = now
            self._change(room)

    def _lower(self, count: int) -> None:
        now = self._glances[-1].at
        if self._raised_at is not None:
            soon = now - self._raised_at < SOON * self._hold
            self._hold = min(2 * self._hold, MOST_HOLD) if soon else HOLD
        self._change(count)

    def _change(self, count: int) -> None:
        self.count = count
        self._free_since = None
        self._num_slow = 0
        # What others do beside more or fewer threads is another matter.
        self._glances = deque([self._glances[-1]])
        for context in self._contexts:
            context.set_threads(count)
