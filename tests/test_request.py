"""What a caller hands in besides messages: ids, sampling, paths; any type, and never another error than ours."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from localspec.answers.request import AnswerOptions
from localspec.checks import check_draft_tokens, checked_path, checked_prompt, text_or_items
from localspec.decoding.params import SamplingParams, checked_bias, sampling_params
from localspec.errors import InvalidRequest, PromptTooLong

N_VOCAB, N_CTX = 10, 4


@pytest.mark.parametrize(
    "ids",
    [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), np.array([1, 2], dtype=np.uint8), [np.int64(1), np.int32(2)],
     iter([1, 2]), (token for token in (1, 2))],
)  # fmt: skip
def test_ids_from_any_iterable(ids: Any) -> None:
    checked = checked_prompt(ids, N_VOCAB, N_CTX)
    assert checked == [1, 2]
    assert all(type(token) is int for token in checked)


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        ([], "is empty"),
        (np.array([], dtype=int), "is empty"),
        (None, "is None"),
        (5, "is 5"),
        (b"abc", "is a bytes"),
        (bytearray(b"abc"), "is a bytearray"),
        (memoryview(b"abc"), "is a memoryview"),
        ("abc", "is a text"),
        ({1: 2}, "is {1: 2}"),
        ({1, 2}, "is {1, 2}"),
        (np.array(5), "is array(5)"),
        ([True], "holds True"),
        ([np.True_], "holds np.True_"),
        ([1.0], "holds 1.0"),
        ([np.float32(1)], "holds np.float32(1.0)"),
        (np.array([1.0, 2.0]), "holds np.float64(1.0)"),
        (np.array([[1, 2]]), "holds array([1, 2])"),
        ([None], "holds None"),
        (["1"], "holds '1'"),
        ([-1], "holds -1"),
        ([N_VOCAB], f"holds {N_VOCAB}"),
        ([10**5000], "holds a int"),
        (["x" * 500], "xx..."),
    ],
)
def test_other_prompts_are_refused_by_value(ids: Any, what: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked_prompt(ids, N_VOCAB, N_CTX)
    assert what in caught.value.message
    assert caught.value.remedy
    assert caught.value.name == "prompt"
    assert len(str(caught.value)) < 200


def test_a_prompt_that_is_too_long_says_by_how_much() -> None:
    assert checked_prompt([1] * N_CTX, N_VOCAB, N_CTX) == [1] * N_CTX
    with pytest.raises(PromptTooLong) as caught:
        checked_prompt(iter([1] * (N_CTX + 1)), N_VOCAB, N_CTX)
    assert (caught.value.num_tokens, caught.value.n_ctx) == (N_CTX + 1, N_CTX)


def test_an_iterator_is_read_once_and_its_own_fault_is_its_own() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert text_or_items("Hi") == "Hi"
    assert text_or_items(iter(messages)) == messages

    def broken() -> Any:
        yield 1
        raise TypeError("the caller's")

    with pytest.raises(TypeError, match="the caller's"):
        text_or_items(broken())


def test_options_of_an_answer_are_those_of_sampling_and_a_few_more() -> None:
    """The typed dictionary and the dataclass stay in step, names and types."""
    own = {
        "params",
        "draft_tokens",
        "verify",
        "prediction",
        "grammar",
        "json_schema",
        "logits_processors",
        "shown_tokens",
    }
    options = AnswerOptions.__annotations__
    fields = SamplingParams.__dataclass_fields__
    assert set(options) == own | set(fields)
    for name, field in fields.items():
        wanted = options[name]
        assert getattr(wanted, "__forward_arg__", wanted) == field.type, name


@pytest.mark.parametrize("params", ["x", 5, {"temperature": 0}, SamplingParams])
def test_params_of_another_type(params: Any) -> None:
    with pytest.raises(InvalidRequest, match="params is ") as caught:
        sampling_params(params, {})
    assert caught.value.name == "params"
    assert caught.value.remedy


def test_params_with_overrides() -> None:
    assert sampling_params(None, {}) == SamplingParams()
    params = sampling_params(SamplingParams(top_k=3), {"temperature": np.float64(0)})
    assert (params.top_k, params.temperature) == (3, 0.0)
    with pytest.raises(InvalidRequest, match=r"There is no option temprature.*Did you mean temperature"):
        sampling_params(None, {"temprature": 1})


def test_a_bias_must_fit_the_vocabulary() -> None:
    good = SamplingParams(logit_bias={N_VOCAB - 1: 1.0, 0: -math.inf})
    assert checked_bias(good, N_VOCAB) is good
    assert checked_bias(SamplingParams(), N_VOCAB) == SamplingParams()
    with pytest.raises(InvalidRequest, match=f"logit_bias holds the token {N_VOCAB}") as caught:
        checked_bias(SamplingParams(logit_bias={0: 1.0, N_VOCAB: 1.0}), N_VOCAB)
    assert "from 0 to 9" in caught.value.remedy


def test_a_bias_must_leave_a_token() -> None:
    all_but_one = dict.fromkeys(range(N_VOCAB - 1), -math.inf)
    checked_bias(SamplingParams(logit_bias=all_but_one), N_VOCAB)
    with pytest.raises(InvalidRequest, match="-inf for all 10 tokens"):
        checked_bias(SamplingParams(logit_bias={**all_but_one, N_VOCAB - 1: -math.inf}), N_VOCAB)


@pytest.mark.parametrize(
    ("value", "expected"), [("auto", "auto"), ("off", 0), (0, 0), (7, 7), (np.int64(3), 3), (np.uint8(0), 0)]
)
def test_draft_tokens(value: Any, expected: int | str) -> None:
    checked = check_draft_tokens(value)
    assert checked == expected
    assert type(checked) is type(expected)


@pytest.mark.parametrize(
    "value",
    [-1, 1.0, True, np.True_, None, "3", "on", b"auto", [3], np.array([1, 2]), np.array(["auto", "off"])],
)
def test_other_draft_tokens(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="draft_tokens is ") as caught:
        check_draft_tokens(value)
    assert caught.value.remedy


class OfBytes:
    def __fspath__(self) -> bytes:
        return b"x"


@pytest.mark.parametrize("value", [None, 5, b"x", "", ["x"], OfBytes()])
def test_other_paths(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="draft is ") as caught:
        checked_path("draft", value)
    assert caught.value.name == "draft"
    assert caught.value.remedy


def test_paths() -> None:
    assert checked_path("target", "a/b.gguf") == Path("a/b.gguf")
    assert checked_path("target", PurePosixPath("a.gguf")) == Path("a.gguf")
