"""Raw logits to a distribution: order of the filters, edges, and no sort of a whole vocabulary."""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.decoding.noise import gumbel
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampling import distribution, largest
from localspec.decoding.seeds import attempt_seed
from localspec.decoding.verify import RejectionRule
from localspec.errors import DecodeError, InvalidRequest
from localspec.text.messages import checked_text

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}


def reference(logits, params: SamplingParams) -> np.ndarray:
    """The same filters by full sorts, in llama.cpp's order: top-k, top-p, min-p, temperature last. Shape (V,)."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if params.top_k:
        order = order[: params.top_k]
    mass = np.array([math.exp(float(logits[t]) - float(max(logits))) for t in order])
    mass /= mass.sum()
    keep = 1
    while keep < len(order) and mass[:keep].sum() < params.top_p:
        keep += 1
    order, mass = order[:keep], mass[:keep]
    order = [t for t, m in zip(order, mass, strict=True) if m >= params.min_p * mass[0] * (1 - 1e-12)]
    full = np.zeros(len(logits))
    for token in order:
        full[token] = math.exp((float(logits[token]) - float(max(logits))) / params.temperature)
    return full / full.sum()


def dense(result, size) -> np.ndarray:
    full = np.zeros(size)
    full[result.tokens] = result.probs
    return full


settings_of = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.2, 0.8, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 40, 1000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)


@settings(max_examples=200, deadline=None)
@given(settings_of, st.integers(0, 10_000), st.integers(1, 900), st.sampled_from([0.01, 1.0, 5.0]))
def test_equals_the_reference(params, seed, size, scale):
    logits = (np.random.default_rng(seed).normal(size=size) * scale).astype(np.float32)
    result = distribution(logits, params)
    assert result.probs.sum() == pytest.approx(1)
    assert (np.diff(result.tokens) > 0).all()
    np.testing.assert_allclose(dense(result, size), reference(logits, params), atol=1e-6)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(100, 3000),
    st.integers(1, 60),
    st.sampled_from([1, 3, 1000]),
    st.floats(0, 1),
)
@settings(deadline=None)
def test_the_largest_are_those_of_a_full_sort(seed, size, count, steps, share_ruled_out):
    """Ties in plenty, also at the edge, and ids that were ruled out, up to all of them."""
    generator = np.random.default_rng(seed)
    logits = generator.integers(-steps, steps + 1, size).astype(np.float32)
    logits[generator.random(size) < share_ruled_out] = -np.inf
    order = sorted(range(size), key=lambda token: (-logits[token], token))[: min(count, size - 1)]
    wanted = sorted(token for token in order if logits[token] > -np.inf)
    assert largest(logits, min(count, size - 1)).tolist() == wanted


def test_the_whole_vocabulary_is_never_sorted(monkeypatch):
    def small_only(function):
        def guarded(array, *args, **kwargs):
            assert len(array) <= 40_000, "sorted a vocabulary"
            return function(array, *args, **kwargs)

        return guarded

    monkeypatch.setattr(np, "sort", small_only(np.sort))
    monkeypatch.setattr(np, "argsort", small_only(np.argsort))
    logits = np.random.default_rng(0).normal(size=151_936).astype(np.float32) * 3
    for params in (SamplingParams(), SamplingParams(top_k=0), SamplingParams(**OFF)):
        distribution(logits, params)


@pytest.mark.parametrize(
    "twin", [copy.copy, copy.deepcopy, lambda params: pickle.loads(pickle.dumps(params))]
)
def test_params_go_to_another_process(twin):
    params = SamplingParams(temperature=0.3, logit_bias={3: -math.inf, 4: 2.5}, stop=["a"], seed=7)
    again = twin(params)
    assert again == params and isinstance(again.logit_bias, type(params.logit_bias))


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-6])
def test_no_temperature_is_greedy_and_ties_go_to_the_lower_id(temperature):
    logits = np.array([1.0, 3.0, 3.0, -np.inf], dtype=np.float32)
    result = distribution(logits, SamplingParams(temperature=temperature))
    assert result.tokens.tolist() == [1] and result.probs.tolist() == [1.0]


@pytest.mark.parametrize("temperature", [1e-4, 1e-3, 100.0])
def test_extreme_temperatures_stay_finite(temperature):
    logits = np.array([50.0, -50.0, 49.9, 0.0], dtype=np.float32)
    result = distribution(logits, SamplingParams(**{**OFF, "temperature": temperature}))
    assert np.isfinite(result.probs).all() and result.probs.sum() == pytest.approx(1)


def test_masked_ids_get_no_mass():
    logits = np.array([0.0, -np.inf, 1.0, -np.inf], dtype=np.float32)
    for top_k in (0, 1, 3, 4):
        result = distribution(logits, SamplingParams(**{**OFF, "top_k": top_k}))
        assert not {1, 3} & set(result.tokens.tolist())


@pytest.mark.parametrize("row", [[np.nan, 1.0], [1.0, np.nan], [-np.inf, -np.inf], [np.inf, 0.0]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_an_error_not_an_answer(row, temperature):
    with pytest.raises(DecodeError, match="logit"):
        distribution(np.array(row, dtype=np.float32), SamplingParams(temperature=temperature))


def test_the_row_is_not_changed():
    logits = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    distribution(logits, SamplingParams(repeat_penalty=2.0, logit_bias={0: 5}), [2, 2])
    assert logits.tolist() == [1.0, 2.0, 3.0]


def test_penalties_follow_llama_cpps_formulas():
    logits = np.array([2.0, -1.0, 1.0, 0.5], dtype=np.float32)
    params = SamplingParams(
        **OFF,
        repeat_penalty=2.0,
        frequency_penalty=0.25,
        presence_penalty=0.5,
        repeat_last_n=4,
        logit_bias={3: 1.0},
    )
    history = [3, 3, 0, 0, 1, 99]  # the first two are outside the window, 99 outside the vocabulary
    expected = np.array([2.0 / 2 - 2 * 0.25 - 0.5, -1.0 * 2 - 0.25 - 0.5, 1.0, 1.5])
    result = distribution(logits, params, history)
    np.testing.assert_allclose(np.log(result.probs / result.probs[2]), expected - expected[2], atol=1e-6)


def test_a_penalty_decides_greedy_too():
    logits = np.array([2.0, 1.9], dtype=np.float32)
    greedy = SamplingParams(temperature=0, presence_penalty=0.5)
    assert distribution(logits, greedy, [0]).tokens.tolist() == [1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", "1"),
        ("temperature", True), ("temperature", None), ("top_k", -1), ("top_k", 1.5), ("top_p", 1.01), ("top_p", -0.1),
        ("min_p", 2), ("repeat_penalty", 0), ("repeat_last_n", -2), ("seed", -1), ("seed", 2**64), ("seed", 1.0),
        ("max_tokens", -1), ("max_tokens", 2.5), ("stop", ("a", "")), ("stop", [1]), ("stop", 5),
        ("logit_bias", {-1: 1.0}), ("logit_bias", {1: math.nan}), ("logit_bias", {1: math.inf}), ("logit_bias", [1]),
        ("frequency_penalty", math.nan), ("presence_penalty", 1e9), ("logit_bias", {1: 1.1e4}),
        ("logit_bias", {1: -1e5}), ("logit_bias", {1: "5"}), ("logit_bias", {True: 1.0}), ("logit_bias", {1: True}),
        ("logit_bias", {1.0: 1.0}), ("repeat_penalty", 9e-4), ("repeat_penalty", 1e-30), ("top_k", np.True_),
        ("temperature", np.True_), ("temperature", np.float32(math.nan)), ("top_k", np.float64(3)),
        pytest.param("temperature", 10**400, id="huge"), pytest.param("top_k", -(10**5000), id="unprintable"),
        ("temperature", 1j), ("top_k", np.array([1, 2])),
        ("stop", b""), ("stop", b"a"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_by_name(name, value):
    with pytest.raises(InvalidRequest, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ("\ud83d", r"Stop string 0 holds half a surrogate pair \(U\+D83D\) at position 0"),
        (["a", "bc\udfff"], r"Stop string 1 holds half a surrogate pair \(U\+DFFF\) at position 2"),
        ("\ude00\ud83d", "Stop string 0 holds half a surrogate pair"),
    ],
)
def test_a_stop_string_that_no_text_can_hold_is_refused_as_such_a_prompt_is(stop, said):
    with pytest.raises(InvalidRequest, match=said) as caught:
        SamplingParams(stop=stop)
    assert caught.value.name == "stop"
    with pytest.raises(InvalidRequest) as of_a_prompt:
        checked_text("a\ud83d", "The prompt", name="prompt")
    assert caught.value.remedy == of_a_prompt.value.remedy
    assert SamplingParams(stop="\U0001f600").stop == ("\U0001f600",)


@pytest.mark.parametrize(
    ("value", "shown"), [(1.5e4, "15000.0"), (-2e4, "-20000.0"), (math.inf, "inf"), (1e-4, "")]
)
def test_a_bias_out_of_range_is_named(value, shown):
    if shown:
        with pytest.raises(InvalidRequest, match=f"logit_bias is {shown}"):
            SamplingParams(logit_bias={1: value})
    else:
        assert SamplingParams(logit_bias={1: value}).logit_bias == {1: value}


@pytest.mark.parametrize("bias", [-1e4, 1e4])
@pytest.mark.parametrize("penalty", [1e-3, 100.0])
def test_the_extremes_that_are_allowed_stay_finite(bias, penalty):
    logits = np.array([80.0, -80.0, 0.0], dtype=np.float32)
    params = SamplingParams(
        **OFF, logit_bias={0: bias}, repeat_penalty=penalty, frequency_penalty=100, presence_penalty=-100
    )
    probs = distribution(logits, params, [0, 1, 1]).probs
    assert np.isfinite(probs).all() and probs.sum() == pytest.approx(1)


def test_numpys_numbers_are_numbers():
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(3), top_p=np.float64(0.5), min_p=Fraction(1, 4),
        repeat_penalty=np.int32(2), repeat_last_n=np.int8(-1), seed=np.uint64(2**64 - 1), max_tokens=np.uint8(4),
        logit_bias={np.int64(1): np.float32(2), 2: -np.inf},
    )  # fmt: skip
    plain = SamplingParams(
        temperature=0.5, top_k=3, top_p=0.5, min_p=0.25, repeat_penalty=2, repeat_last_n=-1, seed=2**64 - 1,
        max_tokens=4, logit_bias={1: 2.0, 2: -math.inf},
    )  # fmt: skip
    assert params == plain
    for name in ("temperature", "top_k", "seed", "max_tokens", "repeat_penalty"):
        assert type(getattr(params, name)) in (int, float)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_that_leaves_nothing_is_blamed_and_not_the_model(temperature):
    logits = np.array([1.0, -np.inf, 2.0], dtype=np.float32)
    params = SamplingParams(temperature=temperature, logit_bias={0: -math.inf, 2: -math.inf})
    with pytest.raises(InvalidRequest, match="logit_bias and the other options leave no token") as caught:
        distribution(logits, params)
    assert caught.value.remedy
    with pytest.raises(DecodeError, match="The model returned a logit of nan") as broken:
        distribution(np.array([np.nan, 1.0, 2.0], dtype=np.float32), params)
    assert "localspec pull NAME" in broken.value.command


def test_defaults_are_the_documented_ones():
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert not params.penalised and params.max_tokens is None and params.seed is None


def test_random_numbers_depend_on_seed_and_position_only():
    first = RejectionRule(7).round(5).uniforms.random()
    RejectionRule(7).round(4).uniforms.random(1000)
    assert RejectionRule(7).round(5).uniforms.random() == first
    assert (
        len({first, RejectionRule(7).round(6).uniforms.random(), RejectionRule(8).round(5).uniforms.random()})
        == 3
    )


def test_gumbel_noise_has_its_distribution_and_no_visible_order():
    noise = np.array([gumbel(3, position, np.arange(200)) for position in range(200)])
    assert noise.mean() == pytest.approx(0.5772, abs=0.02)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.05)
    assert len(np.unique(noise)) == noise.size
    for shifted in (noise[1:, :] * noise[:-1, :], noise[:, 1:] * noise[:, :-1]):
        assert shifted.mean() - noise.mean() ** 2 == pytest.approx(0, abs=0.03)
    assert not np.isin(gumbel(4, 0, np.arange(200)), noise).any()


def test_no_attempt_shares_its_seed_with_another_or_with_that_of_a_seed_nearby():
    seeds = [attempt_seed(seed, attempt) for seed in range(40) for attempt in range(40)]
    assert len(set(seeds)) == 1600 and all(0 <= seed < 2**64 for seed in seeds)
    assert [attempt_seed(2**64 - 1, 0), attempt_seed(7, 0), attempt_seed(None, 3)] == [2**64 - 1, 7, None]
    assert 0 <= attempt_seed(2**64 - 1, 10**6) < 2**64
