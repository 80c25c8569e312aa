"""Sampler: the options that look at more than a row's logits, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.errors import DecodeError, InvalidRequest, NoTokenLeft

from .fake_options import Alternating, NoTwice

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
ROW = np.array([0.0, 1.0, 2.0, 0.5], dtype=np.float32)
EOG = frozenset([2, 3])


def sampler(**arguments):
    own = {
        name: arguments.pop(name)
        for name in ("num_prompt", "eog", "constraint", "processors")
        if name in arguments
    }
    return Sampler(SamplingParams(**{**OFF, **arguments}), **own)


def ids(distribution):
    return distribution.tokens.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("answer", range(5))
def test_no_end_before_the_least_number_of_tokens(answer, temperature):
    made = sampler(min_tokens=3, num_prompt=2, eog=EOG, temperature=temperature)(ROW, [0, 1] + [0] * answer)
    assert bool(set(ids(made)) & EOG) is (answer >= 3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_ignored_end_never_comes(temperature):
    for history in ([], [0], [0] * 100):
        made = sampler(ignore_eos=True, eog=EOG, temperature=temperature)(ROW, history)
        assert not set(ids(made)) & EOG


def test_a_draft_may_have_fewer_ids_than_the_target():
    for row in (ROW[:3], ROW[:2]):
        made = sampler(ignore_eos=True, eog=EOG)(row, [])
        assert ids(made) == [0, 1]
        assert ids(sampler(constraint=NoTwice(4))(row, [1])) == [
            token for token in range(len(row)) if token != 1
        ]


def test_callbacks_come_behind_bias_and_penalties_and_before_the_grammar():
    seen = []

    def first(history, logits):
        seen.append((list(history), logits.copy()))
        logits[0] = 7.0

    def second(history, logits):
        assert logits[0] == 7.0
        return logits * 2

    made = sampler(
        logit_bias={1: 1.0}, presence_penalty=0.5, processors=(first, second), constraint=NoTwice(4)
    )
    result = made(ROW, [2])
    ((history, logits),) = seen
    assert history == [2]
    assert logits.tolist() == [0.0, 2.0, 1.5, 0.5]
    assert ids(result) == [0, 1, 3]
    assert math.log(result.prob(0) / result.prob(1)) == pytest.approx(14 - 4)


@pytest.mark.parametrize("width", [3, 5, 6, 9])
def test_callbacks_are_given_as_many_logits_as_the_target_has(width):
    """Whatever the draft's vocabulary: what it lacks is as unlikely as the least of its own."""
    seen = []

    def callback(ids, row):
        seen.append(row.copy())
        row[-1] += 100.0

    row = np.arange(width, dtype=np.float32)
    made = Sampler(SamplingParams(temperature=0), n_vocab=6, processors=(callback,))(row, [1])
    (given,) = seen
    assert given.tolist() == [*row.tolist(), *[0.0] * (6 - width)]
    assert made.tokens.tolist() == [width - 1], "a token that the draft lacks is none of its own"


def test_what_a_callback_does_to_its_ids_reaches_nobody_else():
    """Not the history of the answer, not the next callback, not the grammar."""
    seen, history = [], [0, 1, 2]

    def callback(ids, row):
        seen.append(list(ids))
        ids.append(3)
        del ids[0]

    own = {"processors": (callback, callback), "constraint": NoTwice(4)}
    made = sampler(**own)(ROW, history)
    assert (history, seen) == ([0, 1, 2], [[0, 1, 2]] * 2) and 3 in ids(made)


def test_filters_come_last():
    """top-k counts what is left: a banned end takes no place."""
    made = sampler(top_k=2, ignore_eos=True, eog=EOG)
    assert ids(made(ROW, [])) == [0, 1]
    assert ids(sampler(top_k=1, constraint=Alternating(4))(ROW, [0, 0])) == [2]


def test_the_row_is_never_changed():
    def change(_history, logits):
        logits[:] = 0

    before = ROW.copy()
    for made in (
        sampler(processors=(change,)),
        sampler(ignore_eos=True, eog=EOG),
        sampler(constraint=NoTwice(4)),
        sampler(top_n_sigma=1.0, typical_p=0.5),
    ):
        made(ROW, [1])
        np.testing.assert_array_equal(ROW, before)


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (np.zeros(3), r"an array of shape \(3,\)"),
        (np.zeros((1, 4)), r"an array of shape \(1, 4\)"),
        (5.0, r"an array of shape \(\)"),
        ([0, 0, math.nan, 0], "NaN or infinity"),
        ([0, 0, math.inf, 0], "NaN or infinity"),
        ([0, 0, 1e300, 0], "NaN or infinity"),
        ([0, 0, 1j, 0], "must return the logits"),
    ],
)
def test_what_a_callback_returns_is_checked(returned, what):
    with pytest.raises(InvalidRequest, match=what) as caught:
        sampler(processors=(lambda _history, _logits: returned,))(ROW, [])
    assert caught.value.remedy and caught.value.name == "logits_processors"


def test_a_callback_may_return_any_numbers():
    assert ids(sampler(processors=(lambda _history, _logits: [0, 0, -math.inf, 0],))(ROW, [])) == [0, 1, 3]


def test_nothing_left_is_blamed_on_the_options_and_not_on_the_model():
    nothing = (lambda _history, logits: np.full_like(logits, -np.inf),)
    with pytest.raises(NoTokenLeft, match="no token that could come next") as caught:
        sampler(processors=nothing)(ROW, [])
    assert caught.value.remedy
    with pytest.raises(NoTokenLeft):
        sampler(logit_bias={0: -math.inf, 1: -math.inf}, ignore_eos=True, eog=EOG)(ROW, [])
    with pytest.raises(DecodeError, match="The model returned a logit of nan"):
        sampler(ignore_eos=True, eog=EOG)(np.full(4, np.nan, dtype=np.float32), [])


@pytest.mark.parametrize(("name", "value"), [("ignore_eos", True), ("min_tokens", 2)])
def test_a_grammar_and_a_forbidden_end_exclude_each_other(name, value):
    with pytest.raises(InvalidRequest, match=f"{name} is {value} beside a grammar") as caught:
        sampler(constraint=NoTwice(), **{name: value})
    assert caught.value.remedy and caught.value.name == name


@pytest.mark.parametrize(
    ("arguments", "reads"),
    [
        ({}, False),
        (
            {"logit_bias": {1: 2.0}, "typical_p": 0.5, "top_n_sigma": 1.0, "logprobs": 3, "ignore_eos": True},
            False,
        ),
        ({"repeat_penalty": 1.1}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, False),
        ({"frequency_penalty": 0.1}, True),
        ({"presence_penalty": 0.1}, True),
        ({"min_tokens": 1}, True),
        ({"constraint": NoTwice()}, True),
        ({"processors": (lambda _history, _logits: None,)}, True),
    ],
)
def test_which_options_read_the_history(arguments, reads):
    assert sampler(**arguments).reads_history is reads


def test_a_grammar_without_a_length_of_its_own_counts():
    """Truth of an object is not whether there is one."""

    class Empty(NoTwice):
        def __len__(self) -> int:
            return 0

    assert sampler(constraint=Empty()).reads_history


def test_copied_tokens_end_where_the_grammar_forbids_them():
    made = sampler(constraint=NoTwice(4), num_prompt=1)
    assert made.count_legal([1], [1, 2, 2, 3]) == 2
    assert made.count_legal([1, 1], [1, 2]) == 0
    assert made.count_legal([1], []) == 0
    assert sampler().count_legal([1], [1, 1, 1]) == 3
