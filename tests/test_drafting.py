"""Drafters: what they propose, and when they have nothing to say."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.decoding.drafting import NgramDrafter
from localspec.decoding.sampling import SamplingParams

from .fakes import model_drafter, random_model

PARAMS = SamplingParams(temperature=0)
UNIFORMS = np.random.default_rng(0)


def propose(drafter, sequence, limit=3):
    return list(drafter.propose(sequence, limit, PARAMS, UNIFORMS).tokens)


def test_ngram_continues_the_latest_longest_match():
    drafter = NgramDrafter(min_match=2, max_match=3)
    sequence = [1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]
    drafter.begin(sequence)
    assert propose(drafter, sequence) == [4, 9, 2]  # three tokens match at the start; two match later
    assert propose(drafter, [*sequence[:-3], 8, 2, 3]) == [5, 8, 2]


def test_ngram_has_nothing_to_say_without_a_match():
    drafter = NgramDrafter(min_match=2, max_match=3)
    for sequence in ([1], [1, 2], [1, 2, 3, 4, 5]):
        drafter.begin(sequence)
        assert propose(drafter, sequence) == []


def test_ngram_sees_new_tokens_and_forgets_the_last_answer():
    drafter = NgramDrafter(min_match=2, max_match=2)
    sequence = [1, 2, 3]
    drafter.begin(sequence)
    sequence += [4, 1, 2]
    assert propose(drafter, sequence) == [3, 4, 1]
    drafter.begin([7, 1, 2])
    assert propose(drafter, [7, 1, 2]) == []


def test_ngram_costs_the_new_tokens_only():
    """The index is kept, not rebuilt: a round on a long text touches as many entries as on a short one."""

    class Counting(dict):
        writes = 0

        def __setitem__(self, key, value):
            Counting.writes += 1
            super().__setitem__(key, value)

    drafter = NgramDrafter()
    drafter._latest = Counting()
    sequence = list(range(20_000))
    drafter.begin(sequence)
    before = Counting.writes
    propose(drafter, [*sequence, 1])
    assert Counting.writes - before <= 2


@pytest.mark.parametrize("limit", [0, -3])
def test_no_room_no_draft(limit):
    drafter = model_drafter(random_model(8, 1), 8)
    drafter.begin([1, 2])
    assert propose(drafter, [1, 2], limit) == []


def test_an_id_the_draft_does_not_have_ends_drafting():
    drafter = model_drafter(random_model(8, 1), 8, target_vocab=12)
    drafter.begin([1, 2])
    assert len(propose(drafter, [1, 2])) == 3
    drafter.rollback(1)
    assert propose(drafter, [1, 11]) == []


def test_drafting_ends_after_an_end_of_generation():
    model = random_model(8, 1)
    drafter = model_drafter(model, 8)
    drafter.begin([1, 2])
    tokens = propose(drafter, [1, 2], 5)
    drafter = model_drafter(model, 8)
    drafter._eog = frozenset([tokens[1]])
    drafter.begin([1, 2])
    assert propose(drafter, [1, 2], 5) == tokens[: tokens.index(tokens[1]) + 1]
