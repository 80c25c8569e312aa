"""Our filters and penalties against llama.cpp's own samplers, which run here on the same rows.

Deliberately different, each with a test below: among equal logits the lower id stays; typical after -inf logits; no
temperature between 0 and MIN_TEMPERATURE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.decoding.params import MIN_TEMPERATURE, SamplingParams
from localspec.decoding.sampling import distribution

from .llama_samplers import apply, chain

OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
ROUNDING = (1.0, 1 - 1e-5, 1 + 1e-5)
"""llama.cpp adds in float32: a token this close to a threshold may fall on either side of it."""


def ours(logits: np.ndarray, params: SamplingParams, history: tuple[int, ...] = ()) -> np.ndarray:
    result = distribution(logits, params, history)
    full = np.zeros(len(logits))
    full[result.tokens] = result.probs
    return full


def theirs(logits: np.ndarray, params: SamplingParams, history: tuple[int, ...] = ()) -> np.ndarray:
    return apply(chain(params, len(logits)), logits, history)


def agree(logits: np.ndarray, params: SamplingParams, history: tuple[int, ...] = ()) -> None:
    """The same tokens survive, each with the same probability."""
    expected = theirs(logits, params, history)
    for factor in ROUNDING:
        found = ours(logits, nudged(params, factor), history)
        if ((found > 0) == (expected > 0)).all():
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-9)
            return
    found = ours(logits, params, history)
    pytest.fail(f"{params}: ours keeps {np.flatnonzero(found)}, llama.cpp {np.flatnonzero(expected)}")


def nudged(params: SamplingParams, factor: float) -> SamplingParams:
    """With every threshold that is on moved a little."""
    changes: dict[str, Any] = {
        name: min(getattr(params, name) * factor, 1 - 1e-7 if getattr(params, name) < 1 else 1.0)
        for name in ("top_p", "typical_p", "min_p")
    }
    return replace(params, top_n_sigma=params.top_n_sigma * factor, **changes)


def row(seed: int, size: int, scale: float = 3.0) -> np.ndarray:
    """Distinct logits: what happens to equal ones is another test."""
    return (np.random.default_rng(seed).normal(size=size) * scale).astype(np.float32)


rows = st.builds(
    row, st.integers(0, 10_000), st.sampled_from([1, 2, 3, 17, 120, 700]), st.sampled_from([0.3, 3.0, 8.0])
)
top_ks = st.sampled_from([0, 1, 2, 5, 40, 1000])
masses = st.sampled_from([0.0, 0.02, 0.3, 0.5, 0.9, 0.95, 0.999, 1.0])
sigmas = st.sampled_from([0.0, 0.05, 0.5, 1.0, 2.0, 5.0])
few = settings(max_examples=120, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("top_k", top_ks),
        ("top_p", masses),
        ("min_p", masses),
        ("typical_p", masses.filter(bool)),
        ("top_n_sigma", sigmas),
        ("temperature", st.sampled_from([0.0, 1e-3, 0.05, 0.8, 1.0, 5.0])),
    ],
)
def test_each_filter_alone(name: str, values: st.SearchStrategy[Any]) -> None:
    @few
    @given(rows, values)
    def check(logits: np.ndarray, value: float) -> None:
        agree(logits, SamplingParams(**{**OFF, name: value}))

    check()


histories = st.builds(
    lambda seed, size: tuple(int(token) for token in np.random.default_rng(seed).integers(0, 12, size)),
    st.integers(0, 1000),
    st.integers(0, 90),
)
penalties = st.fixed_dictionaries(
    {
        "repeat_penalty": st.sampled_from([0.7, 1.0, 1.1, 1.8]),
        "frequency_penalty": st.sampled_from([-0.3, 0.0, 0.4]),
        "presence_penalty": st.sampled_from([-0.5, 0.0, 0.6]),
        "repeat_last_n": st.sampled_from([-1, 0, 1, 8, 64]),
    }
)
biases = st.dictionaries(st.integers(0, 16), st.sampled_from([-5.0, -0.5, 0.5, 5.0]), max_size=5)


@few
@given(st.integers(0, 10_000), penalties, biases, histories)
def test_penalties_and_bias(seed: int, given_: dict[str, Any], bias: dict[int, float], history: Any) -> None:
    agree(row(seed, 17), SamplingParams(**OFF, **given_, logit_bias=bias), history)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.integers(0, 10_000), st.sampled_from([17, 120, 700]), penalties, biases, histories, top_ks, masses,
    masses, masses.filter(bool), st.sampled_from([0.0, 0.3, 0.8, 1.5]),
)  # fmt: skip
def test_whole_chains_in_their_order(
    seed: int, size: int, given_: dict[str, Any], bias: dict[int, float], history: Any, top_k: int, top_p: float,
    min_p: float, typical_p: float, temperature: float,
) -> None:  # fmt: skip
    params = SamplingParams(
        **given_,
        logit_bias=bias,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        temperature=temperature,
    )
    agree(row(seed, size), params, history)


@few
@given(st.integers(0, 10_000), sigmas, top_ks, masses, masses, st.sampled_from([0.3, 1.0, 1.5]))
def test_chains_that_begin_with_top_n_sigma(
    seed: int, top_n_sigma: float, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    params = SamplingParams(
        top_n_sigma=top_n_sigma, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature
    )
    agree(row(seed, 120), params)


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"top_k": 50}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.02}, {"top_n_sigma": 1.0},
        {"top_k": 5, "typical_p": 0.4},
    ],
    ids=str,
)  # fmt: skip
def test_banned_tokens(changes: dict[str, Any]) -> None:
    """-inf is no token: it has no share in a mass, a deviation or a count."""
    for seed in range(20):
        bias = {int(token): -np.inf for token in np.random.default_rng(seed).integers(0, 60, 30)}
        agree(row(seed, 60), SamplingParams(**{**OFF, **changes}, logit_bias=bias))


@pytest.mark.parametrize("mass", [0.125, 0.25, 0.3, 0.5, 0.75, 0.9])
def test_equal_logits_stay_in_the_same_number_and_ours_are_the_lower_ids(mass: float) -> None:
    """llama.cpp's sort keeps any of them."""
    logits = np.zeros(8, dtype=np.float32)
    changes: tuple[dict[str, Any], ...] = (
        {"top_p": mass}, {"typical_p": mass}, {"top_k": 1 + int(8 * mass) % 8}, {"min_p": mass}, {"top_n_sigma": mass}
    )  # fmt: skip
    for change in changes:
        params = SamplingParams(**{**OFF, **change})
        kept = np.flatnonzero(ours(logits, params))
        assert len(kept) == np.count_nonzero(theirs(logits, params))
        assert kept.tolist() == list(range(len(kept)))


def test_typical_leaves_out_what_was_ruled_out_before() -> None:
    """Ours is llama.cpp's on the tokens that are left; llama.cpp's own entropy is NaN behind a -inf."""
    logits = row(1, 60)
    banned = dict.fromkeys(range(0, 60, 3), -np.inf)
    left = np.array([token for token in range(60) if token not in banned])
    params = SamplingParams(**{**OFF, "typical_p": 0.6})
    found = ours(logits, replace(params, logit_bias=banned))
    np.testing.assert_allclose(found[left], theirs(logits[left], params), rtol=2e-4)
    assert not found[list(banned)].any()


def test_greedy_takes_the_likeliest_of_what_typical_leaves() -> None:
    """As any small temperature does."""
    for seed in range(20):
        logits = row(seed, 60)
        for temperature in (0.0, 2e-4):
            params = SamplingParams(**{**OFF, "temperature": temperature, "typical_p": 0.05})
            np.testing.assert_allclose(ours(logits, params), theirs(logits, params), atol=1e-6)


def test_a_temperature_too_small_to_matter_is_none() -> None:
    logits = row(2, 40)
    for temperature in (0.0, MIN_TEMPERATURE / 2, MIN_TEMPERATURE):
        params = SamplingParams(**{**OFF, "temperature": temperature})
        np.testing.assert_allclose(ours(logits, params), theirs(logits, params), atol=1e-9)
    close = np.array([1.0, 1.0001, 0.5], dtype=np.float32)
    tiny = SamplingParams(**{**OFF, "temperature": MIN_TEMPERATURE / 2})
    assert np.count_nonzero(ours(close, tiny)) == 1 < np.count_nonzero(theirs(close, tiny))


@pytest.mark.parametrize(
    "swapped", [lambda p: [p[0], p[1], *p[2:6][::-1], *p[6:]], lambda p: [*p[:2], p[7], *p[2:7]]],
    ids=["filters reversed", "temperature first"],
)  # fmt: skip
def test_another_order_would_be_noticed(swapped: Callable[[list[Any]], list[Any]]) -> None:
    params = SamplingParams(temperature=1.7, top_k=20, top_p=0.8, min_p=0.1, typical_p=0.9)
    differ = 0
    for seed in range(20):
        logits = row(seed, 120)
        found = apply(swapped(chain(params, 120)), logits)
        differ += bool(((found > 0) != (ours(logits, params) > 0)).any())
    assert differ > 0
