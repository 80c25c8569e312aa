"""Timing: answers as an application gets them, and sums over several."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, fields

from localspec.answers.request import Completion, Messages
from localspec.decoding.params import SamplingParams
from localspec.engine.engine import Engine
from localspec.llm import LLM

Clock = Callable[[], float]


@dataclass(frozen=True)
class Timing:
    """One answer. Times in seconds.

    ttft:          from the request to the first chunk.
    seconds:       from the first chunk to the end; target_seconds, draft_seconds: of these, inside passes.
    """

    completion: Completion
    ttft: float
    seconds: float
    target_seconds: float
    draft_seconds: float


def timed_answer(
    llm: LLM,
    messages: Messages,
    params: SamplingParams,
    draft_tokens: int | str,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Answer a conversation and watch the clock. draft_tokens: a length, "auto" or "off"."""
    started = clock()
    first, before = None, (0.0, 0.0)
    completion = None
    # Closed also when interrupted: an engine in the middle of an answer cannot be closed itself.
    with closing(llm.chat(messages, params=params, draft_tokens=draft_tokens)) as chunks:
        for chunk in chunks:
            completion = chunk.completion
            if first is None:
                first, before = clock(), inside(llm.engine)
    end, after = clock(), inside(llm.engine)
    assert first is not None and completion is not None, "the last chunk carries the completion"
    return Timing(
        completion=completion,
        ttft=first - started,
        seconds=end - first,
        target_seconds=after[0] - before[0],
        draft_seconds=after[1] - before[1],
    )


def inside(engine: Engine) -> tuple[float, float]:
    """Seconds inside passes so far: target, draft."""
    return engine.target.decode_seconds, engine.draft.decode_seconds if engine.draft else 0.0


@dataclass
class Tally:
    """Several answers as one. Tokens and seconds are those after each answer's first round."""

    tokens: int = 0
    seconds: float = 0.0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    rounds: int = 0
    ttfts: list[float] = field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        """Both tallies as one."""
        names = (item.name for item in fields(self))
        return Tally(*(getattr(self, name) + getattr(other, name) for name in names))

    def add(self, timing: Timing) -> None:
        """Count one more answer in."""
        stats = timing.completion.stats
        self.tokens += stats.tokens - stats.first_tokens
        self.seconds += timing.seconds
        self.target_seconds += timing.target_seconds
        self.draft_seconds += timing.draft_seconds
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        self.committed += stats.tokens
        self.rounds += stats.rounds
        self.ttfts.append(timing.ttft)

    @property
    def tps(self) -> float:
        """Tokens per second; 0.0 when there were none."""
        return self.tokens / self.seconds if self.tokens else 0.0
