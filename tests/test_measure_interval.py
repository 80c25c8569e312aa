"""Intervals of a bench where the truth is known: machines that drift, and a drafted lane that is 3 % slower or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
import pytest

from localspec.measure.interleave import TOKENS, interleave, turns
from localspec.measure.interval import Estimate, Place, Segment, mean, rate, ratio, student

from .drift import DRIFTS, Drift, Machine, SimulatedLane, bursts, drafted, plain, steady, walk

BENCHES = 120
"""Simulated ones, of which 95 % of the intervals hold the truth: fewer than 106 happen once in 1000 times."""
LEAST = 106
TEXT = 129
"""Tokens of an answer: 43 rounds of the drafted lane."""
GAINS = (1.0, 3.0, 1.5)

Found = tuple[dict[Place, Segment], dict[Place, Segment]]


def machine(drift: object, seed: int, noise: float = 0.05) -> Machine:
    rng = np.random.default_rng(seed)
    return Machine(drift(rng), rng, noise)  # type: ignore[operator]


def simulate(
    machine: Machine,
    speedup: float,
    *,
    texts: int = 3,
    runs: int = 2,
    tokens: int = TEXT,
    gains: Sequence[float] = (1.0,),
) -> Found:
    """Segments of plain and drafted decoding that took turns."""
    found: Found = ({}, {})
    for run in range(runs):
        for text in range(texts):
            lanes = {
                0: SimulatedLane(machine, tokens, plain),
                1: SimulatedLane(machine, tokens, drafted(speedup, gains)),
            }
            for lane, segments in interleave(lanes, run + text).items():
                found[lane].update({Place(text, run, number): one for number, one in segments.items()})
    return found


def truth(speedup: float, gains: Sequence[float] = (1.0,)) -> float:
    """What a steady machine would find."""
    return ratio(*simulate(machine(steady, 0, noise=0.0), speedup, gains=gains)).value


def in_whole_answers(machine: Machine, speedup: float, *, texts: int = 3, runs: int = 5) -> float:
    """The method that this one replaced: answers in turn as wholes, medians over runs."""
    speeds: tuple[list[float], list[float]] = ([], [])
    for run in range(runs):
        spent = [0.0, 0.0]
        for _ in range(texts):
            for lane in turns([0, 1], run):
                one = SimulatedLane(machine, TEXT, (plain, drafted(speedup))[lane])
                one.begin()
                segment = one.go_on(TEXT)
                assert segment is not None
                spent[lane] += segment.seconds
        for lane, seconds in enumerate(spent):
            speeds[lane].append(texts * TEXT / seconds)
    return median(speeds[1]) / median(speeds[0])


# On drifting machines


@pytest.mark.parametrize("gains", [(1.0,), GAINS], ids=["even", "uneven"])
@pytest.mark.parametrize("drift", DRIFTS, ids=lambda drift: drift.__name__)
def test_intervals_hold_the_truth_whatever_the_machine_does(drift: Drift, gains: tuple[float, ...]) -> None:
    true = truth(1.3, gains)
    estimates = [ratio(*simulate(machine(drift, seed), 1.3, gains=gains)) for seed in range(BENCHES)]
    inside = sum(low <= true <= high for low, high in (estimate.interval for estimate in estimates))
    assert inside >= LEAST
    error = math.sqrt(np.mean([math.log(estimate.value / true) ** 2 for estimate in estimates]))
    assert median(estimate.half_width for estimate in estimates) < 5 * error, "wider than there is reason to"


@pytest.mark.parametrize("runs", [1, 3])
def test_intervals_of_a_single_text_hold_the_truth_too(runs: int) -> None:
    true = truth(1.3)
    for drift in DRIFTS:
        estimates = [
            ratio(*simulate(machine(drift, seed), 1.3, texts=1, runs=runs)) for seed in range(BENCHES)
        ]
        assert sum(one.interval[0] <= true <= one.interval[1] for one in estimates) >= LEAST


@pytest.mark.parametrize("drift", [steady, walk], ids=lambda drift: drift.__name__)
def test_stopping_where_it_is_precise_does_not_make_intervals_too_narrow(drift: Drift) -> None:
    inside = 0
    for seed in range(BENCHES):
        one, runs, found = machine(drift, seed), 0, Estimate(0.0)
        before: dict[Place, Segment] = {}
        after: dict[Place, Segment] = {}
        while found.half_width > 0.02 and runs < 12:
            for kept, new in zip((before, after), simulate(one, 1.3, texts=1, runs=1), strict=True):
                kept.update({place._replace(run=runs): segment for place, segment in new.items()})
            found, runs = ratio(before, after), runs + 1
        assert found.half_width <= 0.02
        inside += found.interval[0] <= 1.3 <= found.interval[1]
    assert inside >= LEAST


@pytest.mark.parametrize("drift", DRIFTS, ids=lambda drift: drift.__name__)
def test_three_percent_are_told_apart_on_every_drifting_machine(drift: Drift) -> None:
    """Bursts double the time of whole segments: what they cost in runs, the interval says."""
    benches, runs = (6, 60) if drift is bursts else (40, 2)
    for seed in range(benches):
        even = ratio(*simulate(machine(drift, seed), 1.0, runs=runs))
        slower = ratio(*simulate(machine(drift, seed + 1000), 0.97, runs=runs))
        assert slower.value < 0.985 < even.value
        if drift is not bursts:
            assert slower.interval[1] < 1.0 and even.interval[0] > 0.97


def test_whole_answers_in_turn_would_not_tell_them_apart() -> None:
    """Why segments are as short as they are: the same machine, more runs, and a coin could be thrown."""
    seeds = range(60)
    before = [in_whole_answers(machine(walk, seed), 0.97) > 0.985 for seed in seeds]
    now = [ratio(*simulate(machine(walk, seed), 0.97)).value > 0.985 for seed in seeds]
    assert sum(before) > 10 and sum(now) <= 1


def test_a_gain_that_differs_by_place_is_no_noise_once_there_are_two_runs() -> None:
    once = ratio(*simulate(machine(steady, 1), 1.3, runs=1, gains=GAINS))
    twice = ratio(*simulate(machine(steady, 1), 1.3, runs=2, gains=GAINS))
    assert once.half_width > 0.1 and twice.half_width < 0.015


def test_a_precise_machine_gives_a_precise_ratio() -> None:
    found = ratio(*simulate(machine(steady, 1, noise=0.0), 1.3))
    assert found.half_width < 1e-9


# What turns are


def test_lanes_take_turns_on_the_same_stretch_of_text_and_each_begins_with_another() -> None:
    log: list[tuple[str, int]] = []

    class Lane:
        def __init__(self, name: str, step: int) -> None:
            self.name, self.step, self.done, self.begun = name, step, 0, False

        @property
        def ended(self) -> bool:
            return self.done >= 40

        def begin(self) -> None:
            assert told == [0], "it is said before a prompt is read"
            assert not self.begun
            self.begun = True
            log.append((self.name, -1))

        def go_on(self, until: int) -> Segment | None:
            assert self.begun and not self.ended
            log.append((self.name, until))
            before = self.done
            while self.done < min(until, 40):
                self.done += self.step
            return Segment(self.done - before, 1.0) if self.done > before else None

    told: list[int] = []
    lanes = {"a": Lane("a", 1), "b": Lane("b", 5), "c": Lane("c", 20)}
    found = interleave(lanes, 1, told.append)
    assert log[:3] == [("b", -1), ("c", -1), ("a", -1)]
    assert log[3:9] == [("b", 16), ("c", 16), ("a", 16), ("c", 32), ("a", 32), ("b", 32)]
    assert [entry[0] for entry in log[9:]] == ["a", "b"], "c has ended"
    assert {name: {n: s.tokens for n, s in segments.items()} for name, segments in found.items()} == {
        "a": {0: 16, 1: 16, 2: 8},
        "b": {0: 20, 1: 15, 2: 5},
        "c": {0: 20, 1: 20},
    }
    assert told == [0, TOKENS, 2 * TOKENS, 3 * TOKENS]


# The arithmetic


def same(tokens: int, *seconds: float) -> dict[Place, Segment]:
    return {Place(0, 0, number): Segment(tokens, one) for number, one in enumerate(seconds)}


def test_a_ratio_is_of_seconds_a_token_where_both_were() -> None:
    before = {**same(16, 1.0, 1.2, 0.8), Place(0, 0, 9): Segment(16, 99.0)}
    after = {
        Place(0, 0, 0): Segment(20, 1.0),
        Place(0, 0, 2): Segment(12, 0.6),
        Place(7, 0, 0): Segment(1, 9.0),
    }
    assert ratio(before, after).value == pytest.approx((32 / 1.6) / (32 / 1.8))
    assert rate(before).value == pytest.approx(64 / 102)


def test_two_segments_in_two_runs_by_hand() -> None:
    """One place, two runs: the influences are +-d, their variance 2 * 2 d^2, with one degree of freedom."""
    before = {Place(0, run, 0): Segment(10, 1.0) for run in range(2)}
    after = {Place(0, 0, 0): Segment(10, 1.1), Place(0, 1, 0): Segment(10, 0.9)}
    found = ratio(before, after)
    assert found.value == pytest.approx(1.0)
    assert found.error == pytest.approx(math.sqrt(2 * 2 * 0.05**2))
    assert found.freedom == 1.0


def test_neighbours_that_hang_together_count_for_less() -> None:
    noise = np.random.default_rng(3).standard_normal(200) * 0.05
    smooth = np.convolve(noise, np.ones(3), "same")
    alone, together = rate(same(16, *(1 + noise))), rate(same(16, *(1 + smooth)))
    spread = [np.std(1 + values) / math.sqrt(200) for values in (noise, smooth)]
    assert alone.error == pytest.approx(spread[0], rel=0.35)
    assert together.error > 1.3 * spread[1]


def test_where_nothing_can_be_said_nothing_is() -> None:
    assert ratio({}, {}).value == 0.0 and rate({}).value == 0.0
    single = ratio(same(16, 1.0), same(16, 0.5))
    assert (single.value, single.half_width) == (2.0, math.inf)
    assert mean([single, Estimate(1.0, 0.01, 5.0)]).half_width == math.inf
    assert ratio(same(0, 1.0, 1.0), same(4, 1.0, 1.0)).value == 0.0


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (120, 1.980), (1e6, 1.960)]
)
def test_students_quantiles_are_those_of_the_tables(freedom: float, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, abs=6e-4)


def test_an_interval_is_symmetric_in_the_logarithm() -> None:
    found = Estimate(1.3, 0.01, 1e6)
    low, high = found.interval
    assert low * high == pytest.approx(1.3**2)
    assert high == pytest.approx(1.3 * math.exp(0.0196), rel=1e-4)
    assert found.half_width == pytest.approx(0.0198, rel=1e-3)


def test_the_mean_of_many_is_known_better_than_each() -> None:
    parts = [Estimate(value, 0.02, 6.0) for value in (1.0, 2.0, 1.5, 1.5)]
    found = mean(parts)
    assert found.value == 1.5
    assert found.error == pytest.approx(0.02 * math.sqrt(1 + 4 + 2.25 + 2.25) / 4 / 1.5)
    assert 6 < found.freedom <= 24
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        drawn = []
        for _ in range(4):
            sample = rng.normal(1.0, 0.05, 6)
            drawn.append(Estimate(sample.mean(), sample.std(ddof=1) / math.sqrt(6), 5.0))
        low, high = mean(drawn).interval
        hits += low <= 1.0 <= high
    assert 365 <= hits <= 395
