"""Cost tables, and measuring them through the Context protocol."""

from __future__ import annotations

import json

import numpy as np
import pytest

from localspec.decoding.calibrate import WIDTHS, calibrate
from localspec.decoding.costs import CostTable
from localspec.engine.assumed_costs import going_on_from

from .fakes import random_model
from .simulation import CURVES, Clock, TimedContext, table


def test_between_measured_widths_is_interpolated_and_beyond_grows_in_proportion():
    costs = CostTable({1: 1.0, 4: 4.0, 8: 5.0})
    assert [costs.time(n) for n in (1, 2, 4, 6, 8, 16)] == pytest.approx([1, 2, 4, 4.5, 5, 10])


def test_a_long_context_costs_more():
    costs = CostTable({1: 1.0, 8: 3.0}, slope=0.001, row_slope=0.0005)
    assert costs.time(1, 1000) == pytest.approx(2.0)
    assert costs.time(8, 1000) == pytest.approx(3.0 + 1.0 + 3.5)


def test_padding_finds_the_cheapest_width_within_the_limit():
    costs = table(CURVES["Q4_0"])
    assert costs.padded_width(2, 32) == 4
    assert costs.padded_width(2, 3) == 2
    assert costs.padded_width(2, 4) == 4
    assert costs.padded_width(4, 32) == 4


def test_the_machine_getting_slower_is_followed_and_one_outlier_is_not():
    costs = CostTable({1: 1.0, 4: 2.0})
    costs.observe(4, 0, 200.0)
    assert costs.time(1) < 1.5
    for _ in range(60):
        costs.observe(4, 0, 6.0)
        costs.observe(1, 0, 3.0)
    assert costs.time(4) == pytest.approx(6.0, rel=0.1)
    assert costs.time(1) == pytest.approx(3.0, rel=0.1)


def test_json_round_trip():
    costs = CostTable({1: 1.0, 4: 2.0}, slope=0.1, row_slope=0.01)
    again = CostTable.from_dict(json.loads(json.dumps(costs.to_dict())))
    assert again.to_dict() == costs.to_dict()


@pytest.mark.parametrize(
    "data",
    [{}, {"seconds": {}}, {"seconds": {"2": 1.0}, "slope": 0, "row_slope": 0}, {"seconds": 5},
     {"seconds": {"1": -1.0}, "slope": 0, "row_slope": 0},
     {"seconds": {"1": 1.0, "4": 0.0}, "slope": 0, "row_slope": 0},
     {"seconds": {"1": "x"}, "slope": 0, "row_slope": 0}],
)  # fmt: skip
def test_damaged_data_is_refused(data):
    with pytest.raises((ValueError, KeyError, TypeError)):
        CostTable.from_dict(data)


@pytest.mark.parametrize("curve", list(CURVES))
def test_calibration_finds_the_curve_and_leaves_the_context_empty(curve):
    step, widths = CURVES[curve]
    true = CostTable({n: step * v for n, v in widths.items()}, slope=1e-6, row_slope=1e-6)
    clock, row = Clock(), random_model(8, 1)
    context = TimedContext(clock, true, lambda length: row((length,)))
    measured = calibrate(context, verifies=True, clock=clock).table
    for width in WIDTHS:
        assert measured.time(width, 600) == pytest.approx(true.time(width, 632), rel=0.02)
    assert context.length(0) == 0


@pytest.mark.parametrize("n_ctx", [1, 2, 3, 12])
@pytest.mark.parametrize("verifies", [True, False])
def test_calibration_of_a_tiny_context(n_ctx, verifies):
    clock, row = Clock(), random_model(8, 1)
    context = TimedContext(clock, table(CURVES["Q4_0"]), lambda length: row((length,)))
    context.n_ctx, context.n_outputs = n_ctx, 4
    measured = calibrate(context, verifies=verifies, clock=clock).table
    assert max(measured.seconds) <= max(n_ctx // 2, 1) and measured.time(1) > 0


def test_a_busy_machine_is_noticed_and_the_least_times_are_taken():
    noise = np.random.default_rng(0)
    clock, row = Clock(), random_model(8, 1)
    true = table(CURVES["Q4_0"])
    busy = TimedContext(clock, true, lambda length: row((length,)), lambda now: 1 + noise.exponential(2))
    measured = calibrate(busy, verifies=True, clock=clock, repeats=12, max_seconds=1e6)
    assert not measured.steady
    assert measured.table.time(1) < 2 * true.time(1)
    calm = TimedContext(clock, true, lambda length: row((length,)), lambda now: 1 + noise.exponential(0.02))
    assert calibrate(calm, verifies=True, clock=clock).steady


def test_measuring_ends_when_its_time_is_over():
    clock, row = Clock(), random_model(8, 1)
    slow = CostTable({1: 1.0, 32: 10.0})
    context = TimedContext(clock, slow, lambda length: row((length,)))
    calibrate(context, verifies=True, clock=clock, repeats=50, max_seconds=30)
    assert clock.now < 5 * sum(slow.time(width) for width in WIDTHS) + slow.time(288)


@pytest.mark.parametrize(("slope", "found"), [(-1e-5, 0.0), (0.0, 0.0), (1e-6, 1e-6), (1.0, 0.0225 / 4000)])
def test_a_longer_context_never_makes_a_pass_cheaper_and_never_absurdly_dear(slope, found):
    """A machine that got calmer, or busier, between the two measurements."""
    step, widths = CURVES["Q4_0"]
    true = CostTable({n: step * v for n, v in widths.items()}, slope=slope)
    clock, row = Clock(), random_model(8, 1)
    short = true.time(1, 32)
    measured = calibrate(TimedContext(clock, true, lambda length: row((length,))), verifies=True, clock=clock)
    expected = found * short / step if slope == 1.0 else found
    assert measured.table.slope == pytest.approx(expected, rel=1e-3, abs=1e-12)


def test_passes_of_widths_in_between_leave_a_measured_table_measured() -> None:
    """On a machine that became busy they are all slow: that is its pace, and no doubt in what was measured calmly."""
    table = CostTable({1: 1.0, 2: 1.8, 4: 3.0})
    for _ in range(30):
        table.observe(3, 0, 1.7 * 2.4)
    assert table.certain and table.measured
    assert table.scale == pytest.approx(1.7, rel=0.05)


def test_what_part_of_a_pass_plain_decoding_takes_does_not_depend_on_the_load() -> None:
    table = CostTable({1: 1.0, 2: 1.8, 4: 3.0}, slope=0.001, row_slope=0.0005)
    for _ in range(9):
        table.observe(2, 0, 4 * 1.8)
    assert table.plain_part(1, 500) == 1.0
    assert table.plain_part(3, 1000) == pytest.approx((1.0 + 1.0) / (2.4 + 1.0 + 1.0))
    assumed = CostTable({1: 1.0, 4: 2.0}, certainty={1: 0.0, 4: 0.0})
    for _ in range(40):
        assumed.observe(1, 0, 1.0)
        assumed.observe(4, 0, 3.6)
    assert assumed.plain_part(4, 0) == pytest.approx(1 / 3.6, rel=0.1), "what was assumed is learned"


def test_a_disturbed_wide_pass_is_not_believed_to_be_dearer_than_assumed() -> None:
    assumed = CostTable({1: 1.0, 2: 1.6, 4: 2.2, 8: 4.3}, certainty=dict.fromkeys((1, 2, 4, 8), 0.0))
    found = going_on_from(CostTable({1: 0.1, 2: 0.13, 4: 0.4}), assumed)
    assert [found.time(width) for width in (1, 2, 4, 8)] == pytest.approx([0.1, 0.13, 0.22, 0.43])
    assert not found.measured and found.certainty[1] == found.certainty[4] > 0
    cheap = going_on_from(CostTable({1: 0.1, 2: 0.12, 4: 0.15}), assumed)
    assert [cheap.time(width) for width in (2, 3, 4)] == pytest.approx([0.12, 0.135, 0.15])
    assert cheap.time(8) == pytest.approx(0.15 * 4.3 / 2.2)
