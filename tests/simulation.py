"""The real loop on a simulated clock: passes cost what a curve says, drafts agree where a script says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.costs import CostTable
from localspec.decoding.drafting import ChainDrafter
from localspec.decoding.loop import Generation, run
from localspec.decoding.model_drafter import ModelDrafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.decoding.session import Session
from localspec.decoding.stats import Step
from localspec.decoding.verify import RejectionRule

from .fakes import FakeContext

V = 8

CURVES = {
    "Q4_K_M": (0.027, {1: 1, 2: 1.7, 3: 2.1, 4: 2.6, 6: 3.8, 8: 4.5, 12: 5.5, 16: 5.5, 32: 9.5}),
    "Q4_0": (0.0225, {1: 1, 2: 1.8, 3: 2.5, 4: 1.6, 6: 3.2, 8: 3.0, 12: 4.3, 16: 4.3, 32: 8.7}),
    "Q8_0": (0.0435, {1: 1, 2: 2.7, 3: 3.3, 4: 3.6, 6: 5.5, 8: 3.8, 12: 4.9, 16: 5.9, 32: 10}),
    "BF16": (0.058, {1: 1, 2: 1.25, 3: 1.45, 4: 1.6, 6: 1.75, 8: 2.0, 12: 2.35, 16: 2.6, 32: 4.1}),
}
"""Measured: seconds of a 1-wide pass, and V(n) (2 cores, 1.5B target)."""
DRAFT_CURVE = (0.0088, {1: 1, 2: 1.6, 3: 2.2, 4: 1.5, 6: 2.8, 8: 2.7, 12: 4.0, 16: 4.0, 32: 8})
"""The 0.5B draft as pure Q4_0."""


def table(curve: tuple[float, dict[int, float]]) -> CostTable:
    step, widths = curve
    return CostTable({width: step * factor for width, factor in widths.items()})


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class TimedContext(FakeContext):
    """A fake whose passes take time. slowdown(now) stands for a busy machine."""

    clock: Clock
    costs: CostTable
    row: Callable[[int], np.ndarray]
    slowdown: Callable[[float], float] = lambda now: 1.0

    def __post_init__(self) -> None:
        super().__init__(lambda prefix: self.row(len(prefix)), V, n_ctx=4096, n_batch=512)

    def decode(self, spans):
        width, length = sum(len(span.tokens) for span in spans), spans[0].start
        self.clock.now += self.costs.time(width, length) * self.slowdown(self.clock.now)
        return super().decode(spans)


@dataclass
class World:
    """A text of `agrees` positions: whether the draft is right there, and how sure it says it is."""

    target_curve: tuple[float, dict[int, float]]
    agrees: Sequence[bool]
    confidence: Sequence[float]
    slowdown: Callable[[float], float] = lambda now: 1.0
    clock: Clock = field(default_factory=Clock)
    min_width: int = 1

    def truth(self, position: int) -> int:
        return (position * 5 + position // 7) % V

    def _target_row(self, position: int) -> np.ndarray:
        row = np.zeros(V, dtype=np.float32)
        row[self.truth(position)] = 10.0
        return row

    def _draft_row(self, position: int) -> np.ndarray:
        index = min(position, len(self.agrees) - 1)
        token = self.truth(position) if self.agrees[index] else (self.truth(position) + 1) % V
        confidence = min(max(self.confidence[index], 1.01 / V), 0.9999)
        row = np.zeros(V, dtype=np.float32)
        row[token] = np.log(confidence * (V - 1) / (1 - confidence))
        return row

    def run(self, num_tokens: int, controller: AdaptiveController | None = None) -> list[Step]:
        """Steps of one answer; the controller knows the curves as calibrated."""
        controller = controller or self.controller()
        target = TimedContext(self.clock, table(self.target_curve), self._target_row, self.slowdown)
        draft = TimedContext(self.clock, table(DRAFT_CURVE), self._draft_row, self.slowdown)
        generation = Generation(
            Session(target, min_width=self.min_width),
            ChainDrafter([ModelDrafter(Session(draft), V)]),
            controller,
            Sampler(SamplingParams(temperature=0, max_tokens=num_tokens)),
            [1, 2, 3],
            rule=RejectionRule(0),
            check=lambda token: None,
            clock=self.clock,
        )
        return list(run(generation))

    def controller(self) -> AdaptiveController:
        return AdaptiveController(table(self.target_curve), table(DRAFT_CURVE))


def decode_rate(steps: list[Step]) -> float:
    """Tokens per second after the first round."""
    return sum(len(step.tokens) for step in steps[1:]) / sum(step.seconds for step in steps[1:])


def clairvoyant_rate(world: World, num_tokens: int) -> float:
    """The best any schedule could do that knows in advance which drafts stand: dynamic programming."""
    target, draft = table(world.target_curve), table(DRAFT_CURVE)
    best = [0.0] + [float("inf")] * num_tokens
    for done in range(num_tokens):
        stands = 0
        for k in range(min(31, num_tokens - done - 1) + 1):
            if k:
                index = min(3 + done + k, len(world.agrees) - 1)
                stands = stands + 1 if stands == k - 1 and world.agrees[index] else stands
            cost = k * draft.time(1) + (target.padded_time(k + 1, 32) if k else target.time(1))
            end = done + stands + 1
            best[end] = min(best[end], best[done] + cost)
            if stands < k:
                break
    return num_tokens / best[num_tokens]
