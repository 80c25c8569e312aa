"""Log-probabilities: the target's own, for every token, drafted or not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_softmax

from localspec.decoding.drafting import NgramDrafter, NoDrafter
from localspec.decoding.logprobs import token_logprob
from localspec.decoding.params import SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.verify import BlockRule, CoupledRule, RejectionRule

from .fakes import FakeContext, blended, generate, model_drafter, random_model
from .mutation import planted

V = 8
TARGET = random_model(V, seed=3)
DRAFT = blended(TARGET, random_model(V, seed=4), 0.45)
PROMPT = (0, 1)
SHAPING = {
    "temperature": 1.4, "top_k": 4, "typical_p": 0.9, "repeat_penalty": 1.3, "logit_bias": {2: 1.5}, "min_tokens": 3,
}  # fmt: skip
DRAFTERS = {
    "model": lambda: model_drafter(DRAFT, V),
    "perfect": lambda: model_drafter(TARGET, V),
    "ngram": lambda: NgramDrafter(1, 2),
    "none": NoDrafter,
}


def answered(drafter, params, make_rule=CoupledRule, num_draft_tokens=3, **arguments):
    tokens, steps = generate(
        TARGET, DRAFTERS[drafter](), n_vocab=V, params=params, prompt=PROMPT, make_rule=make_rule,
        num_draft_tokens=num_draft_tokens, **arguments,
    )  # fmt: skip
    for step in steps:
        wanted = step.tokens if params.logprobs is not None else ()
        assert tuple(entry.token for entry in step.logprobs) == wanted
    return tokens, [entry for step in steps for entry in step.logprobs]


def reference(tokens):
    """Log-softmax of the raw row behind each prefix, shape (n, V)."""
    prefixes = [(*PROMPT, *tokens[:index]) for index in range(len(tokens))]
    return log_softmax(np.array([TARGET(prefix) for prefix in prefixes], dtype=np.float64), axis=1)


@pytest.mark.parametrize("options", [{"temperature": 0}, {}, SHAPING])
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4, 7])
@pytest.mark.parametrize("drafter", ["model", "perfect", "ngram"])
def test_with_and_without_a_draft_they_are_the_same(drafter, num_draft_tokens, options):
    params = SamplingParams(**options, logprobs=3, max_tokens=40)
    plain = answered("none", params, seed=5)
    assert answered(drafter, params, seed=5, num_draft_tokens=num_draft_tokens) == plain


@pytest.mark.parametrize("make_rule", [RejectionRule, BlockRule, CoupledRule])
@pytest.mark.parametrize("drafter", list(DRAFTERS))
def test_they_are_those_of_the_raw_row_whatever_the_options(drafter, make_rule):
    params = SamplingParams(**SHAPING, logprobs=3, max_tokens=60)
    tokens, entries = answered(drafter, params, make_rule)
    expected = reference(tokens)
    assert len(entries) == len(tokens) == 60
    for index, (token, entry, row) in enumerate(zip(tokens, entries, expected, strict=True)):
        assert entry == token_logprob(TARGET((*PROMPT, *tokens[:index])), token, 3)
        assert entry.logprob == pytest.approx(row[token], abs=1e-6)
        assert [index for index, _ in entry.top] == np.argsort(-row, kind="stable")[:3].tolist()
        assert [value for _, value in entry.top] == pytest.approx(np.sort(row)[::-1][:3], abs=1e-6)


def test_none_are_made_where_none_were_asked_for():
    _, entries = answered("model", SamplingParams(max_tokens=20))
    assert entries == []


def test_asking_for_them_changes_no_token():
    plain, _ = answered("model", SamplingParams(max_tokens=40))
    assert answered("model", SamplingParams(max_tokens=40, logprobs=5))[0] == plain


def test_an_end_in_mid_draft_cuts_them_too():
    params = SamplingParams(temperature=0, logprobs=1, max_tokens=40)
    plain, _ = answered("none", params)
    for end in sorted(set(plain)):
        tokens, entries = answered("perfect", params, num_draft_tokens=5, eog=frozenset([end]))
        assert len(entries) == len(tokens) == plain.index(end) + 1


def test_padded_passes_have_the_right_rows():
    params = SamplingParams(logprobs=2, max_tokens=30)
    plain = answered("none", params)
    for min_width in (2, 3, 6):
        session = Session(FakeContext(TARGET, V), min_width=min_width)
        assert answered("model", params, session=session) == plain


@pytest.mark.parametrize("rows", ["rows[1:] + rows[:1]", "rows[-1:] * len(rows)", "rows[:1] * len(rows)"])
def test_those_of_a_wrong_row_are_seen(rows):
    params = SamplingParams(logprobs=0, max_tokens=40)
    with planted(
        "localspec.decoding.loop", "Generation._logprobs", "zip(rows, tokens", f"zip({rows}, tokens"
    ):
        tokens, entries = answered("model", params)
    expected = reference(tokens)
    assert any(
        abs(entry.logprob - row[entry.token]) > 1e-3 for entry, row in zip(entries, expected, strict=True)
    )


# --- one row


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_the_best_come_first_and_equal_ones_by_id():
    entry = token_logprob(row(1, 3, 2, 3, 0), 4, 3)
    assert [token for token, _ in entry.top] == [1, 3, 2]
    values = [value for _, value in entry.top]
    assert values[0] == values[1] > values[2]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [6, 40, 700])
def test_of_equal_ones_at_the_edge_the_lowest_ids_are_reported(count, size):
    logits = np.zeros(size, dtype=np.float32)
    logits[size // 2] = 1
    entry = token_logprob(logits, 0, count)
    others = [token for token in range(size) if token != size // 2]
    assert [token for token, _ in entry.top] == [size // 2, *others[: count - 1]]


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 1), (4, 4), (5, 4), (100, 4)])
def test_at_most_the_whole_vocabulary_is_reported(count, expected):
    entry = token_logprob(row(0.5, 1, -2, 0), 2, count)
    assert len(entry.top) == expected
    if expected == 4:
        assert sum(math.exp(value) for _, value in entry.top) == pytest.approx(1)
        assert dict(entry.top)[2] == entry.logprob


def test_impossible_tokens_are_not_among_the_likeliest():
    entry = token_logprob(row(0, -np.inf, 1, -np.inf), 0, 4)
    assert [token for token, _ in entry.top] == [2, 0]
    assert entry.logprob == pytest.approx(-math.log(1 + math.e))


@pytest.mark.parametrize("shift", [-1000.0, 0.0, 1000.0])
def test_any_size_of_logits(shift):
    logits = (np.random.default_rng(1).normal(size=1000) * 4 + shift).astype(np.float32)
    entry = token_logprob(logits, 17, 20)
    expected = log_softmax(logits.astype(np.float64))
    assert entry.logprob == pytest.approx(expected[17], abs=1e-6)
    assert [value for _, value in entry.top] == pytest.approx(np.sort(expected)[::-1][:20], abs=1e-6)


def test_plain_python_numbers_come_out():
    entry = token_logprob(row(1, 2), 1, 2)
    assert type(entry.logprob) is float
    assert all(type(token) is int and type(value) is float for token, value in entry.top)
