"""AdaptivePlan: one round's decisions, by what passes cost and how often drafted tokens stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING

from localspec.decoding.control import MODEL

if TYPE_CHECKING:
    from localspec.decoding.adaptive import AdaptiveController

BEST_ACCEPTANCE = 0.95
"""Acceptance that a draft model reaches on easy text: where even this does not pay, it is not tried."""


@dataclass
class AdaptivePlan:
    """One round's decisions.

    taken: drafter and confidence of each drafted token. foreseen: what free drafters foresaw and was not taken, so that
    they are judged also while they are not used. num_pending: tokens that the pass reads before those drafted.
    survival: chance that all taken stand; expected: how many of them do.
    """

    controller: AdaptiveController
    limit: int
    length: int
    num_pending: int = 1
    taken: list[tuple[str, float]] = field(default_factory=list)
    foreseen: list[tuple[str, float, int]] = field(default_factory=list)
    survival: float = 1.0
    expected: float = 0.0
    pass_seconds: float = 0.0
    probing: bool = False
    _rate: float = field(init=False)
    _times: list[float] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._rate = self.controller.rate(self.limit, self.length)

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self.limit - len(self.taken)

    def pays_for_pass(self, drafter: str, num_pending: int) -> bool:
        """Judged with the average acceptance: the next token's confidence is known only after the pass."""
        controller = self.controller
        if controller.draft is None or self.room < 1:
            return False
        seconds = controller.draft_time(num_pending, self.length)
        value = self._value(repeat(controller.average.value), self._model_time(), first=seconds)
        if value <= 0 and not self.taken and not self.pass_seconds and controller.probe_due(self.length):
            self.probing = True
            value = self._value(repeat(BEST_ACCEPTANCE), self._model_time(), first=seconds)
        if value <= 0:
            return False
        self.pass_seconds += seconds
        return True

    def take(self, drafter: str, confidence: float) -> bool:
        """Judged with this token's confidence, and what may follow it."""
        if self.room < 1:
            return False
        acceptance = self.controller.predictors[drafter].predict(confidence)
        if drafter == MODEL:
            ahead: Iterator[float] = chain([acceptance], repeat(self.controller.average.value))
            value = self._value(ahead, self._model_time())
        else:
            predict = self.controller.predictors[drafter].predict
            # While a copy goes on, the match it rests on grows.
            value = self._value((predict(confidence + step) for step in range(self.room)), 0.0)
            value -= 0.0 if self.taken else max(0.0, self._value_of_model())
        if value <= 0:
            if drafter == MODEL:
                self.controller.average.observe(acceptance)
            return False
        self.taken.append((drafter, confidence))
        self.survival *= acceptance
        self.expected += self.survival
        return True

    def foresee(self, drafter: str, confidence: float, token: int) -> None:
        """Compared with what the round commits."""
        self.foreseen.append((drafter, confidence, token))

    def _value_of_model(self) -> float:
        """What the draft model would bring instead, in tokens."""
        if self.controller.draft is None:
            return 0.0
        time = self._model_time()
        return self._value(repeat(self.controller.average.value), time, first=time)

    def _model_time(self) -> float:
        return self.controller.draft_time(1, self.length) if self.controller.draft else 0.0

    def _value(self, ahead: Iterator[float], pass_time: float, first: float = 0.0) -> float:
        """The best over all stretches from here: expected tokens minus R times their seconds.

        ahead: acceptance of the tokens to come; first: seconds before the first of them, pass_time: before each other.
        """
        controller, count = self.controller, len(self.taken)
        rate = self._rate
        plain = controller.time(1, self.length)
        back = partial(controller.way_back, length=self.length, num_pending=self.num_pending)
        base = self._verify_time(count + 1) + (back(self.expected, 1 - self.survival) if count else 0.0)
        # The worst case is that every drafted token is refused: one token for all that time.
        bare = plain if self.num_pending == 1 else self._verify_time(1)
        stake = controller.ledger.stake(plain) + bare - self.pass_seconds
        times = self._verify_times()
        widest = times[self.limit + 1]
        tokens, survival, seconds, best = 0.0, self.survival, first, float("-inf")
        for width, acceptance in zip(range(count + 2, self.limit + 2), ahead, strict=False):
            survival *= acceptance
            tokens += survival
            verify = times[width] + back(self.expected + tokens, 1 - survival)
            if seconds + verify <= stake:
                best = max(best, tokens - rate * (seconds + verify - base))
            elif verify >= widest:
                break
            seconds += pass_time
            if survival < 0.02:
                break
        return best

    def _verify_time(self, width: int) -> float:
        """Of a pass over the last id and `width` - 1 drafted ones, and what is read before them."""
        return self._verify_times()[width]

    def _verify_times(self) -> list[float]:
        """The same by width, up to what may be drafted; nothing in a round changes it."""
        if self._times is None:
            controller, before = self.controller, self.num_pending - 1
            calm = controller.calm_times(self.limit + 1 + before, self.length)[before:]
            self._times = [controller.target.scale * seconds for seconds in calm]
        return self._times
