"""The real loop, controller and choice of threads on a simulated machine of two processors that others use too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor
from time import perf_counter, process_time

import numpy as np

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.control import Controller, FixedLength
from localspec.decoding.costs import CostTable
from localspec.decoding.drafting import ChainDrafter
from localspec.decoding.loop import Generation, run
from localspec.decoding.model_drafter import ModelDrafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.decoding.session import Session
from localspec.decoding.stats import Step
from localspec.decoding.threads import ThreadControl
from localspec.decoding.verify import RejectionRule
from localspec.engine.assumed_costs import with_fewer_threads
from localspec.system.neighbours import Glance

from .fakes import FakeContext
from .simulation import Clock, V, table

PROCESSORS = 2
TICK = 0.01
"""Systems count work of processors in these, seconds."""

Curve = tuple[float, dict[int, float]]


@dataclass(frozen=True)
class Library:
    """Measured, seconds. target, draft: of one token with two threads and nobody else, and of wider passes against
    that. busy: of passes of the target over one and four tokens, by threads and neighbours that never sleep.
    """

    target: Curve
    draft: Curve
    busy: dict[tuple[int, int], tuple[float, float]]

    def seconds(self, drafts: bool, width: int, threads: int, neighbours: int) -> float:
        """Of a pass. What collapses stalls by its many waits, whatever it computes; else it slows in proportion."""
        share = min(max((width - 1) / 3, 0.0), 1.0)
        now, calm = (
            (1 - share) * one + share * four
            for one, four in (self.busy[threads, min(neighbours, 2)], self.busy[2, 0])
        )
        alone = table(self.draft if drafts else self.target).time(width)
        return alone + now - calm if now > 20 * calm else alone * now / calm


IK = Library(
    (0.0536, {1: 1, 2: 1.15, 3: 1.36, 4: 1.51, 5: 1.74, 6: 1.98, 8: 2.40, 12: 3.76, 16: 4.88, 32: 9.52}),
    (0.0146, {1: 1, 2: 1.28, 3: 1.60, 4: 2.13, 6: 2.48, 8: 3.83, 12: 4.86, 16: 7.64, 32: 13.5}),
    {
        (2, 0): (0.054, 0.085), (2, 1): (0.101, 0.250), (2, 2): (2.460, 2.344),
        (1, 0): (0.090, 0.138), (1, 1): (0.097, 0.137), (1, 2): (0.142, 0.193),
    },
)  # fmt: skip
LLAMA = Library(
    (0.0589, {1: 1, 2: 1.70, 3: 2.22, 4: 2.90, 5: 4.03, 6: 4.39, 8: 6.43, 12: 8.65, 16: 9.90, 32: 17.6}),
    (0.0175, {1: 1, 2: 1.6, 3: 2.2, 4: 1.5, 6: 2.8, 8: 2.7, 12: 4.0, 16: 4.0, 32: 8}),
    {
        (2, 0): (0.060, 0.186), (2, 1): (0.099, 0.351), (2, 2): (3.283, 3.283),
        (1, 0): (0.107, 0.313), (1, 1): (0.119, 0.374), (1, 2): (0.175, 0.592),
    },
)  # fmt: skip
LIBRARIES = {"ik": IK, "llama": LLAMA}


class Nobody:
    """In the place of `Neighbours`: others do nothing."""

    def look(self) -> Glance:
        own = process_time()
        return Glance(perf_counter(), own, own)


Schedule = Sequence[tuple[float, int]]
"""Moments from which on there are so many neighbours, the first one at 0."""


def coming_and_going(count: int, period: float, seconds: float) -> Schedule:
    """`count` neighbours for `period` seconds, then none for as long, and so on."""
    return [(period * index, count * (index % 2)) for index in range(int(seconds / period))]


@dataclass
class Machine:
    """Its clock, who uses it beside us, and what it counts. blind: it does not show what others do."""

    schedule: Schedule
    blind: bool = False
    clock: Clock = field(default_factory=Clock)
    busy: float = 0.0
    own: float = 0.0

    def neighbours(self) -> int:
        return next(count for start, count in reversed(self.schedule) if start <= self.clock.now)

    def _until_change(self) -> float:
        return next((s - self.clock.now for s, _ in self.schedule if s > self.clock.now), float("inf"))

    def compute(self, library: Library, drafts: bool, width: int, threads: int) -> None:
        """One pass; who comes while it runs slows down what is left of it."""
        left = 1.0
        while left > 1e-9:
            whole = library.seconds(drafts, width, threads, self.neighbours())
            seconds = min(left * whole, self._until_change())
            self.advance(seconds, threads)
            left -= seconds / whole

    def advance(self, seconds: float, threads: int = 0) -> None:
        """Time passes, in which so many threads of ours compute. All who do share the processors."""
        others = self.neighbours()
        share = min(1.0, PROCESSORS / max(threads + others, 1))
        self.own += threads * share * seconds
        self.busy += (threads + others) * share * seconds
        self.clock.now += seconds + 1e-9

    def look(self) -> Glance:
        if self.blind:
            return Glance(self.clock.now, self.own, self.own)
        return Glance(self.clock.now, floor(self.busy / TICK) * TICK, self.own)


class SharedContext(FakeContext):
    """Its passes take what they take on a machine that others use."""

    def __init__(self, machine: Machine, library: Library, drafts: bool) -> None:
        # A text of which every token is known; the draft is right two times in three, and knows when.
        super().__init__(lambda prefix: self._row(len(prefix)), V, n_ctx=8192, n_batch=512)
        self.machine, self.library, self.drafts, self.threads = machine, library, drafts, PROCESSORS

    def set_threads(self, count: int) -> None:
        self.threads = count

    def decode(self, spans):
        width = sum(len(span.tokens) for span in spans)
        self.machine.compute(self.library, self.drafts, width, self.threads)
        return super().decode(spans)

    def _row(self, position: int) -> np.ndarray:
        token, wrong = (position * 5 + position // 7) % V, (position * position) % 11 < 2
        row = np.zeros(V, dtype=np.float32)
        row[(token + 1) % V if self.drafts and wrong else token] = 1.5 if self.drafts and wrong else 6.0
        return row


@dataclass
class World:
    """Answers on such a machine. control: who chooses the number of threads; None: it stays 2."""

    library: Library
    machine: Machine
    control: ThreadControl | None = None
    tables: dict[int, tuple[CostTable, CostTable | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, library: Library, schedule: Schedule, *, chosen: bool = True, blind: bool = False) -> World:
        machine = Machine(schedule, blind)
        return cls(library, machine, ThreadControl(2, PROCESSORS, machine.look) if chosen else None)

    def controller(self) -> AdaptiveController:
        """It knows what passes cost with two threads, and assumes the rest."""
        full = table(self.library.target), table(self.library.draft)
        self.tables[2] = full
        return AdaptiveController(*full, threads=self.control, costs_for=self._costs_for)

    def _costs_for(self, threads: int) -> tuple[CostTable, CostTable | None]:
        if threads not in self.tables:
            target, draft = self.tables[2]
            assert draft is not None
            self.tables[threads] = (
                with_fewer_threads(target, 2 / threads),
                with_fewer_threads(draft, 2 / threads),
            )
        return self.tables[threads]

    def run(self, seconds: float, controller: Controller | None = None) -> list[Step]:
        """Steps of one answer that lasts at least so long, after its prompt."""
        contexts = [SharedContext(self.machine, self.library, drafts) for drafts in (False, True)]
        target, draft = (Session(context, threads=self.control) for context in contexts)
        for context in contexts:
            if self.control is not None:
                self.control.govern(context)
        generation = Generation(
            target,
            ChainDrafter([ModelDrafter(draft, V)]),
            controller or self.controller(),
            Sampler(SamplingParams(temperature=0, max_tokens=8000)),
            [1, 2, 3],
            rule=RejectionRule(0),
            check=lambda token: None,
            clock=self.machine.clock,
        )
        steps, ends = [], self.machine.clock.now + seconds
        for step in run(generation):
            steps.append(step)
            if self.machine.clock.now >= ends:
                break
        return steps[1:]

    def run_plain(self, seconds: float) -> list[Step]:
        return self.run(seconds, FixedLength(0))
