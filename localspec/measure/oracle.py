"""The oracle bound: the least time any schedule needs that knows beforehand which drafted tokens stand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from localspec.decoding.costs import CostTable
from localspec.measure.trace import Trace


def oracle_speedup(
    traces: Iterable[Trace], target: CostTable, draft: CostTable | None, max_width: int
) -> float:
    """Plain seconds / oracle seconds over all traces; 1.0 where there is nothing to decode."""
    plain = best = 0.0
    for trace in traces:
        plain += plain_seconds(trace, target)
        best += oracle_seconds(trace, target, draft, max_width)
    return plain / best if best else 1.0


def plain_seconds(trace: Trace, target: CostTable) -> float:
    """Seconds of plain decoding after the first token, which comes with the prompt."""
    return sum(target.time(1, trace.num_prompt + done - 1) for done in range(1, len(trace.model)))


def oracle_seconds(trace: Trace, target: CostTable, draft: CostTable | None, max_width: int) -> float:
    """Seconds after the first token, by dynamic programming over the tokens that are there.

    A round copies some tokens for nothing, lets the draft model continue at one 1-wide pass for each, and has
    them checked in the cheapest pass of at least that width. Catching up on what others wrote costs the draft nothing
    here: this is a bound, not a plan.
    """
    count = len(trace.model)
    runs = model_runs(trace.model)
    best = [0.0] * 2 + [float("inf")] * (count - 1)
    for done in range(1, count):
        length = trace.num_prompt + done - 1
        checks = _check_seconds(target, max_width, length)
        drafting = draft.time(1, length) if draft else 0.0
        room = min(max_width, count - done) - 1
        for copied in range(min(trace.copied[done], room) + 1):
            for drafted in range(min(runs[done + copied], room - copied) + 1 if draft else 1):
                stand = copied + drafted
                seconds = best[done] + drafted * drafting + checks[stand]
                best[done + stand + 1] = min(best[done + stand + 1], seconds)
    return best[count]


def model_runs(standing: Sequence[bool]) -> list[int]:
    """From every position on, how many of the draft model's tokens in a row stand; one more entry for the end."""
    runs = [0]
    for stands in reversed(standing):
        runs.append(runs[-1] + 1 if stands else 0)
    return runs[::-1]


def _check_seconds(target: CostTable, max_width: int, length: int) -> list[float]:
    """Seconds of the pass that checks 0, 1, ... drafted tokens; plain decoding is never padded."""
    padded = [target.padded_time(width, max_width, length) for width in range(2, max_width + 1)]
    return [target.time(1, length), *padded]
