"""The estimate against enumeration and simulation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.costs import CostTable
from localspec.engine.measured_costs import Costs
from localspec.errors import InvalidRequest
from localspec.measure.estimate import Estimator, estimate, from_costs, from_numbers

from .simulation import CURVES, DRAFT_CURVE, table

acceptances = st.floats(0, 1)


@st.composite
def estimators(draw: st.DrawFn) -> Estimator:
    widths = draw(st.sets(st.integers(2, 12), max_size=4))
    return from_numbers(
        draw(st.floats(0, 1.5)), {width: draw(st.floats(0.3, 8)) for width in widths}, longest=8
    )


@given(acceptances, st.integers(0, 8))
def test_expected_tokens_are_those_of_all_outcomes(acceptance: float, length: int) -> None:
    expected = 0.0
    for outcome in product([True, False], repeat=length):
        chance = np.prod([acceptance if stands else 1 - acceptance for stands in outcome])
        accepted = outcome.index(False) if False in outcome else length
        expected += chance * (accepted + 1)
    assert from_numbers(0.3).tokens(length, acceptance) == pytest.approx(expected)


def test_the_speedup_is_what_many_simulated_rounds_give() -> None:
    estimator = from_numbers(0.3, {4: 1.6, 8: 3.0})
    rng = np.random.default_rng(1)
    for acceptance, length in ((0.8, 3), (0.5, 1), (0.9, 6)):
        stands = rng.random((50_000, length)) < acceptance
        accepted = np.cumprod(stands, axis=1).sum(axis=1)
        seconds = length * 0.3 + {2: 1.2, 4: 1.6, 7: 1.6 + 0.75 * 1.4}[length + 1]
        simulated = (accepted + 1).mean() / seconds
        assert estimator.speedup(length, acceptance) == pytest.approx(simulated, rel=0.02)


@given(estimators(), acceptances)
def test_the_best_length_is_the_best(estimator: Estimator, acceptance: float) -> None:
    best = estimator.best_length(acceptance)
    assert estimator.speedup(0, acceptance) == 1.0
    assert all(
        estimator.speedup(best, acceptance) >= estimator.speedup(length, acceptance) for length in range(9)
    )


@given(estimators(), st.integers(1, 8))
def test_above_break_even_it_pays_and_below_it_does_not(estimator: Estimator, length: int) -> None:
    even = estimator.break_even(length)
    if even is None:
        assert estimator.speedup(length, 1.0) <= 1
        return
    assert estimator.speedup(length, min(even + 1e-6, 1.0)) >= 1
    assert even < 1e-6 or estimator.speedup(length, even - 1e-6) <= 1
    least = estimator.least_break_even()
    assert least is not None and least <= even
    assert estimator.best_length(min(least + 1e-6, 1.0)) > 0 or least > 1 - 1e-6


def test_a_pass_is_padded_where_a_wider_one_is_cheaper() -> None:
    estimator = from_costs(Costs(table(CURVES["Q4_0"]), table(DRAFT_CURVE)))
    assert estimator.cost_ratio == pytest.approx(0.0088 / 0.0225)
    assert estimator.cost(1) == pytest.approx(0.0088 / 0.0225 + 1.6)  # 2 rows in a pass of 4
    assert estimator.best_length(0.9) == 3
    assert estimator.best_length(0.5) == 0


def test_without_a_draft_model_drafts_are_free() -> None:
    estimator = from_costs(Costs(CostTable({1: 0.02, 16: 0.08}), None))
    assert estimator.cost(15) == pytest.approx(4.0)


def test_an_estimate_lists_curves_and_the_asked_length() -> None:
    result = estimate(from_numbers(0.5, longest=4), [0.6, 0.9], asked_length=2)
    assert result["cost_ratio"] == 0.5
    assert result["break_even_acceptance"] == 0.5  # one token: 1 + a = 1 + c
    first, second = result["estimates"]
    assert (first["acceptance"], second["acceptance"]) == (0.6, 0.9)
    assert first["speedup_at_draft_tokens"] == pytest.approx(1.96 / 2, abs=1e-3)
    assert [point["draft_tokens"] for point in second["curve"]] == [0, 1, 2, 3, 4]
    assert max(point["speedup"] for point in second["curve"]) == second["speedup"]


def test_where_no_draft_pays_it_says_so() -> None:
    result = estimate(from_numbers(1.2), [0.99], asked_length=1)
    assert result["break_even_acceptance"] is None
    assert result["break_even_at_draft_tokens"] is None
    assert (result["estimates"][0]["best_draft_tokens"], result["estimates"][0]["speedup"]) == (0, 1.0)


@pytest.mark.parametrize(
    ("ratio", "verify", "complaint"),
    [
        (-0.1, None, "-0.1"),
        (float("nan"), None, "nan"),
        (0.1, {1: 2.0}, "2.0@1"),
        (0.1, {4: 0.0}, "0.0@4"),
        (0.1, {4: float("inf")}, "inf@4"),
    ],
)
def test_impossible_numbers_are_named(ratio: float, verify: dict[int, float] | None, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        from_numbers(ratio, verify)


@pytest.mark.parametrize("acceptance", [-0.1, 1.1, float("nan")])
def test_an_acceptance_is_between_0_and_1(acceptance: float) -> None:
    with pytest.raises(InvalidRequest, match="from 0 to 1"):
        estimate(from_numbers(0.3), [acceptance])


@pytest.mark.parametrize(
    ("cost_ratio", "pays"), [(0.0, 0.0), (0.5, 0.5), (0.99, 0.99), (1.0, None), (1.5, None)]
)
def test_a_length_that_gains_nothing_at_best_never_pays(cost_ratio: float, pays: float | None) -> None:
    """One token drafted where a wider pass is free: it pays from an acceptance that is what it costs, below 1."""
    found = from_numbers(cost_ratio, longest=1).break_even(1)
    assert found == (None if pays is None else pytest.approx(pays, abs=1e-9))
    assert from_numbers(cost_ratio, longest=1).least_break_even() == found
