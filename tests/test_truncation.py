"""Typical sampling and top-n-sigma against slow references, and the order of all filters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from localspec.decoding.params import SamplingParams
from localspec.decoding.sampling import distribution

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def kept(logits, **options) -> list[int]:
    return distribution(
        np.asarray(logits, dtype=np.float32), SamplingParams(**{**OFF, **options})
    ).tokens.tolist()


def random_logits(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=int(rng.integers(2, 300))) * rng.choice([0.5, 2.0, 5.0])).astype(np.float32)


def probabilities(logits: dict[int, float]) -> dict[int, float]:
    best = max(logits.values())
    mass = {token: math.exp(value - best) for token, value in logits.items()}
    total = math.fsum(mass.values())
    return {token: value / total for token, value in mass.items()}


def within_sigma(logits: dict[int, float], count: float) -> dict[int, float]:
    mean = math.fsum(logits.values()) / len(logits)
    sigma = math.sqrt(math.fsum((value - mean) ** 2 for value in logits.values()) / len(logits))
    return {t: value for t, value in logits.items() if value >= max(logits.values()) - count * sigma}


def most_likely(logits: dict[int, float], count: int) -> dict[int, float]:
    return {t: logits[t] for t in sorted(logits, key=lambda t: (-logits[t], t))[: count or len(logits)]}


def typical(logits: dict[int, float], mass: float) -> dict[int, float]:
    probs = probabilities(logits)
    entropy = -math.fsum(p * math.log(p) for p in probs.values())
    chosen: dict[int, float] = {}
    for token in sorted(probs, key=lambda t: abs(-math.log(probs[t]) - entropy)):
        if chosen and math.fsum(probs[t] for t in chosen) >= mass:
            break
        chosen[token] = logits[token]
    return chosen


def nucleus(logits: dict[int, float], mass: float) -> dict[int, float]:
    probs = probabilities(logits)
    chosen: dict[int, float] = {}
    for token in sorted(logits, key=lambda t: (-logits[t], t)):
        if chosen and math.fsum(probs[t] for t in chosen) >= mass:
            break
        chosen[token] = logits[token]
    return chosen


def relative(logits: dict[int, float], least: float) -> dict[int, float]:
    probs = probabilities(logits)
    return {t: logits[t] for t, p in probs.items() if p >= least * max(probs.values()) * (1 - 1e-12)}


@pytest.mark.parametrize("seed", range(40))
def test_equal_to_the_references_in_their_order(seed):
    logits = random_logits(seed)
    rng = np.random.default_rng(seed + 1)
    options = {
        "top_n_sigma": float(rng.choice([0.0, 0.7, 2.0])),
        "top_k": int(rng.choice([0, 5, 40])),
        "typical_p": float(rng.choice([0.2, 0.7, 0.95, 1.0])),
        "top_p": float(rng.choice([0.4, 0.9, 1.0])),
        "min_p": float(rng.choice([0.0, 0.1])),
    }
    left = dict(enumerate(map(float, logits)))
    if options["top_n_sigma"]:
        left = within_sigma(left, options["top_n_sigma"])
    left = most_likely(left, options["top_k"])
    if options["typical_p"] < 1:
        left = typical(left, options["typical_p"])
    if options["top_p"] < 1:
        left = nucleus(left, options["top_p"])
    left = relative(left, options["min_p"])
    result = distribution(logits, SamplingParams(**{**OFF, **options, "temperature": 1.7}))
    assert result.tokens.tolist() == sorted(left)
    expected = probabilities({token: value / 1.7 for token, value in left.items()})
    assert result.probs.tolist() == pytest.approx([expected[token] for token in sorted(left)])


def test_typical_may_leave_out_the_likeliest():
    """Entropy 2.16 nats: a surprise of 0.92 (probability .4) is farther from it than one of 3.0 (.05)."""
    logits = np.log([0.4] + [0.05] * 12)
    assert kept(logits, typical_p=0.38) == list(range(1, 9))
    assert kept(logits, typical_p=0.7) == list(range(13))
    assert kept(logits, typical_p=1.0) == list(range(13))


def test_one_token_always_stays():
    logits = np.log([0.7, 0.2, 0.1])
    assert len(kept(logits, typical_p=1e-6)) == 1
    assert kept(logits, top_n_sigma=1e-6) == [0]
    assert kept([3.0, 3.0, 3.0], top_n_sigma=1e-6) == [0, 1, 2]  # no spread, no difference
    assert kept([5.0], typical_p=0.5, top_n_sigma=1.0) == [0]


def test_top_n_sigma_does_not_depend_on_the_temperature():
    logits = random_logits(3)
    cold, hot = (kept(logits, top_n_sigma=1.0, temperature=t) for t in (0.2, 5.0))
    assert cold == hot


def test_impossible_tokens_count_for_neither():
    logits = [2.0, 1.5, -np.inf, -1.0, -np.inf]
    without = [2.0, 1.5, -1.0]
    places = [0, 1, 3]
    for options in ({"top_n_sigma": 0.5}, {"top_n_sigma": 1.5}, {"typical_p": 0.5}, {"typical_p": 0.9}):
        assert kept(logits, **options) == [places[token] for token in kept(without, **options)]
