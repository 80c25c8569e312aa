"""Laws of what is learned of costs: whatever was believed, answers put it right."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.decoding.calibrate import Calibrator
from localspec.decoding.costs import CostTable

from .fakes import random_model
from .simulation import CURVES, Clock, TimedContext, table

SEEDS = range(60)


def poisoned(true: CostTable, rng: np.random.Generator) -> CostTable:
    """Any of the entries wrong by up to 20 times, with any certainty but the full one."""
    wrong = {w: 20 ** rng.uniform(-1, 1) if rng.random() < 0.6 else 1.0 for w in true.seconds}
    sure = {width: float(rng.choice([0.0, rng.uniform(0, 1), 0.9])) for width in true.seconds}
    return CostTable({w: t * wrong[w] for w, t in true.seconds.items()}, certainty=sure)


def in_use(true: CostTable, rng: np.random.Generator) -> list[int]:
    """One token, and one or two widths beside it."""
    return [1, *(int(w) for w in rng.choice(list(true.seconds)[1:], size=rng.integers(1, 3), replace=False))]


def is_right(believed: CostTable, true: CostTable, widths: list[int], within: float = 1.15) -> bool:
    off = [believed.time(w) / believed.time(1) / (true.time(w) / true.time(1)) for w in widths]
    return all(1 / within < share < within for share in off)


@pytest.mark.parametrize("noise", [0.0, 0.04])
@pytest.mark.parametrize("curve", list(CURVES))
def test_fifty_passes_put_right_whatever_was_believed(curve, noise):
    true = table(CURVES[curve])
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        believed, widths = poisoned(true, rng), in_use(true, rng)
        for index in range(51):
            width = widths[index % len(widths)]
            believed.observe(width, 0, true.time(width) * np.exp(noise * rng.standard_normal()))
        assert is_right(believed, true, widths), (seed, widths)
        kept = CostTable.from_dict(believed.learned().to_dict())
        assert is_right(kept, true, widths), (seed, widths)
        assert believed.time(1) == pytest.approx(true.time(1), rel=0.15)


def answered(true: CostTable, sure: float, widths: list[int], passes: int = 40) -> CostTable:
    """Costs that are right, and were seen in answers."""
    believed = CostTable(dict(true.seconds), certainty=dict.fromkeys(true.seconds, sure))
    for index in range(passes):
        believed.observe(widths[index % len(widths)], 0, true.time(widths[index % len(widths)]))
    return believed


@pytest.mark.parametrize("sure", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("stall", [20.0, 1e4], ids=["stalled", "suspended"])
def test_one_pass_that_stalled_is_no_fact(sure, stall):
    """In an answer, as the first pass or any other."""
    true = table(CURVES["Q4_0"])
    for before in (0, 1, 2, 40):
        for stalled in (1, 4):
            believed = answered(true, sure, [1, 4], before)
            believed.observe(stalled, 0, stall * true.time(stalled))
            assert before < 40 or believed.time(4) / believed.time(1) < 1.5 * true.time(4) / true.time(1)
            for _ in range(15):
                believed.observe(1, 0, true.time(1))
                believed.observe(4, 0, true.time(4))
            assert is_right(believed, true, [1, 2, 4, 8, 32]), (before, stalled)
            assert believed.time(1) == pytest.approx(true.time(1), rel=0.15)


@pytest.mark.parametrize("sure", [0.0, 0.3, 0.9, 1.0])
def test_a_machine_that_gets_slower_for_good_is_followed_in_all_widths(sure):
    true = table(CURVES["Q4_0"])
    slow = CostTable({width: 3 * seconds for width, seconds in true.seconds.items()})
    for widths in ([1], [1, 4], [1, 3, 8]):
        believed = answered(true, sure, widths)
        for index in range(60):
            believed.observe(widths[index % len(widths)], 0, slow.time(widths[index % len(widths)]))
        assert believed.time(1) == pytest.approx(slow.time(1), rel=0.15)
        assert is_right(believed, true, [1, *widths])
        assert is_right(believed, true, list(true.seconds), within=1.4)


@pytest.mark.parametrize("stalled", range(2, 30))
def test_one_stalled_pass_of_an_interrupted_measuring_teaches_nothing_wrong(stalled):
    """Whichever it is, and wherever the measuring is interrupted then."""
    true = table(CURVES["Q4_0"])
    for after in range(1, 6):
        believed = CostTable(dict(true.seconds), certainty=dict.fromkeys(true.seconds, 0.0))
        passes, row, clock = iter(range(1, 1000)), random_model(8, 1), Clock()
        context = TimedContext(
            clock,
            true,
            lambda length, row=row: row((length,)),
            lambda now, passes=passes: 20.0 if next(passes) == stalled else 1.0,
        )
        calibrator = Calibrator(context, verifies=True, known=believed, clock=clock)
        for number, _ in enumerate(calibrator.passes(2, 8.0), 1):
            if number == stalled + after:
                break
        if calibrator.has_begun:
            found = calibrator.result()
            believed.improve(found.table, slopes=found.slopes, complete=found.complete)
        assert is_right(believed, true, list(true.seconds)), after


def test_a_narrow_pass_never_seems_dearer_than_a_wide_one():
    """It stalled: so what is measured, and what was kept by then, is not believed."""
    wide = {2: 1.8, 4: 1.6, 8: 3.0}
    kept = CostTable.from_dict(
        {
            "seconds": {1: 20.0, **wide},
            "slope": 0,
            "row_slope": 0,
            "certainty": {1: 0.5, 2: 0.3, 4: 0.5, 8: 0.0},
        }
    )
    assert kept.time(1) < 2 and kept.time(4) == 1.6 and kept.certainty[1] <= 0.1
    sure = CostTable({1: 20.0, **wide})
    assert sure.time(1) == 20.0
