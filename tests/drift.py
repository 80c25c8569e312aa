"""A machine whose speed drifts, and ways of decoding on it: what a bench finds where the truth is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from localspec.measure.interval import Segment

Drift = Callable[[float], float]
"""By which factor passes take longer at a time."""
HORIZON, GRID = 4000.0, 0.25
"""Seconds that a drift is made for, and how finely."""


def steady(rng: np.random.Generator) -> Drift:
    return lambda now: 1.0


def waves(rng: np.random.Generator) -> Drift:
    """Slow, by 8 %."""
    period, phase = rng.uniform(20, 200), rng.uniform(0, 7)
    return lambda now: 1 + 0.08 * np.sin(2 * np.pi * now / period + phase)


def steps(rng: np.random.Generator) -> Drift:
    """Another speed every half minute or so, by 10 %."""
    edges, levels = np.cumsum(rng.exponential(30, 400)), 1 + 0.1 * rng.standard_normal(401).clip(-2, 2)
    return lambda now: float(levels[np.searchsorted(edges, now)])


def bursts(rng: np.random.Generator) -> Drift:
    """Half as fast for a second or two, every 15 s or so."""
    starts = np.cumsum(rng.exponential(15, 600))
    lengths = rng.uniform(0.5, 2, 600)

    def slowness(now: float) -> float:
        index = int(np.searchsorted(starts, now)) - 1
        return 2.0 if index >= 0 and now < starts[index] + lengths[index] else 1.0

    return slowness


def walk(rng: np.random.Generator) -> Drift:
    """A random walk, drawn back, whose spread is 8 %."""
    count, pull = int(HORIZON / GRID), 0.01
    moves = rng.standard_normal(count) * 0.08 * np.sqrt(2 * pull)
    path = [0.0]
    for move in moves:
        path.append(path[-1] * (1 - pull) + float(move))
    return lambda now: float(np.exp(path[min(int(now / GRID), count)]))


DRIFTS = (steady, waves, steps, bursts, walk)


@dataclass
class Machine:
    """A clock that only passes move. noise: of a single pass."""

    drift: Drift
    rng: np.random.Generator
    noise: float = 0.05
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def compute(self, seconds: float) -> None:
        self.now += seconds * self.drift(self.now) * float(np.exp(self.noise * self.rng.standard_normal()))


@dataclass
class SimulatedLane:
    """Writes `tokens` tokens in rounds of some tokens and seconds; `rounds` gives those behind a token."""

    machine: Machine
    tokens: int
    rounds: Callable[[int], tuple[int, float]]
    prompt_seconds: float = 2.0
    done: int = field(default=0, init=False)

    @property
    def ended(self) -> bool:
        return self.done >= self.tokens

    def begin(self) -> None:
        self.machine.compute(self.prompt_seconds)
        self.done = 0

    def go_on(self, until: int) -> Segment | None:
        before, started = self.done, self.machine.now
        while not self.ended and self.done < until:
            tokens, seconds = self.rounds(self.done)
            self.machine.compute(seconds)
            self.done = min(self.done + tokens, self.tokens)
        return Segment(self.done - before, self.machine.now - started) if self.done > before else None


def plain(done: int) -> tuple[int, float]:
    """A token a round."""
    return 1, 0.06


def drafted(speedup: float, gains: Sequence[float] = (1.0,)) -> Callable[[int], tuple[int, float]]:
    """Three tokens a round. gains: how much faster than in the mean, by segment."""
    mean = len(gains) / sum(1 / gain for gain in gains)

    def rounds(done: int) -> tuple[int, float]:
        gain = gains[done // 16 % len(gains)] / mean
        return 3, 3 * 0.06 / speedup / gain

    return rounds
