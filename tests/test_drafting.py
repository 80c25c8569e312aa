"""Drafters: what they propose, and when they have nothing to say."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.control import FixedPlan
from localspec.decoding.costs import CostTable
from localspec.decoding.drafting import ChainDrafter, NgramDrafter, NgramIndex, PredictionDrafter
from localspec.decoding.loop import Generation, run
from localspec.decoding.model_drafter import ModelDrafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.decoding.sampling import Distribution
from localspec.decoding.session import Session
from localspec.decoding.verify import Draft, RejectionRule

from .fakes import FakeContext, model_drafter, random_model

SAMPLER = Sampler(SamplingParams(temperature=0))
ROUND = RejectionRule(0).round(0)


def propose(drafter, sequence, limit=3):
    return list(drafter.propose(sequence, FixedPlan(limit), SAMPLER, ROUND).tokens)


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

    index = NgramIndex(4, 5)
    index._latest = Counting()
    sequence = list(range(20_000))
    index.extend(sequence)
    before = Counting.writes
    index.extend([*sequence, 1])
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


@pytest.mark.parametrize("target_vocab", [3, 8, 11, 12, 20])
def test_ids_that_only_the_draft_has_are_never_proposed(target_vocab):
    """However likely it finds them: the target has no row for them."""
    drafter = model_drafter(lambda prefix: np.arange(12, dtype=np.float32), 12, target_vocab=target_vocab)
    drafter.begin([1, 2])
    assert propose(drafter, [1, 2]) == [min(target_vocab, 12) - 1] * 3


def test_drafting_ends_after_an_end_of_generation():
    model = random_model(8, 1)
    drafter = model_drafter(model, 8)
    drafter.begin([1, 2])
    tokens = propose(drafter, [1, 2], 5)
    drafter = model_drafter(model, 8)
    drafter._eog = frozenset([tokens[1]])
    drafter.begin([1, 2])
    assert propose(drafter, [1, 2], 5) == tokens[: tokens.index(tokens[1]) + 1]


def test_prediction_is_followed_from_its_beginning():
    drafter = PredictionDrafter([5, 6, 7, 8, 9])
    drafter.begin([1, 2])
    assert propose(drafter, [1, 2]) == [5, 6, 7]
    assert propose(drafter, [1, 2, 5, 6]) == [7, 8, 9]
    assert propose(drafter, [1, 2, 5, 6, 7, 8, 9]) == []


def test_prediction_is_found_again_after_a_departure():
    drafter = PredictionDrafter([5, 6, 7, 8, 9, 10, 11])
    drafter.begin([1])
    assert propose(drafter, [1, 5, 6, 0]) == []
    assert propose(drafter, [1, 5, 6, 0, 7, 8, 9]) == [10, 11]
    assert propose(drafter, [1, 5, 6, 0, 7, 8, 9, 10]) == [11]


def test_a_chain_lets_the_model_go_on_where_copying_ends():
    model = random_model(8, 1, memory=9)  # longer than what is repeated
    chain = ChainDrafter([NgramDrafter(2, 3), model_drafter(model, 8)])
    sequence = [1, 2, 3, 1, 2]
    chain.begin(sequence)
    draft = chain.propose(sequence, FixedPlan(5), SAMPLER, ROUND)
    assert draft.tokens[:3] == (3, 1, 2) and len(draft.tokens) == 5
    alone = model_drafter(model, 8)
    assert propose(alone, [*sequence, 3, 1, 2], 2) == list(draft.tokens[3:])
    assert [probs is None for probs in draft.probs] == [True, True, True, False, False]


def test_a_draft_whose_ids_are_all_banned_proposes_nothing():
    """The target may have ids that the draft lacks: it goes on without."""
    drafter = model_drafter(random_model(8, 1), 8, target_vocab=10)
    drafter.begin([0, 1])
    for banned, expected in ((8, 0), (7, 3)):
        params = SamplingParams(temperature=0, logit_bias=dict.fromkeys(range(banned), -math.inf))
        assert len(drafter.propose([0, 1], FixedPlan(3), Sampler(params), ROUND).tokens) == expected
        drafter.rollback(1)


@pytest.mark.parametrize("drawn", list(product((False, True), repeat=3)))
@pytest.mark.parametrize("lengths", [(2, 1, 3), (0, 2, 1), (1, 0, 2), (2, 2, 0), (0, 0, 0)])
def test_a_joined_draft_knows_of_every_token_what_it_was_drawn_from(drawn, lengths):
    """Copied tokens are certain, whoever copied them, and whatever stands before and behind."""
    joined, expected = Draft(), []
    for part, (own, length) in enumerate(zip(drawn, lengths, strict=True)):
        tokens = tuple(10 * part + index for index in range(length))
        probs = tuple(Distribution(np.array([token, token + 1]), np.array([0.25, 0.75])) for token in tokens)
        joined = joined + Draft(tokens, probs if own else None)
        expected += [(token, 0.25 if own else 1.0) for token in tokens]
    found = [(token, joined.distribution(at).prob(token)) for at, token in enumerate(joined.tokens)]
    assert found == expected


def test_the_draft_model_reads_the_prompt_once_the_first_token_is_out():
    """Who asks waits for the first token: nothing is read by the draft before it, and all of it behind it."""
    reads: list[tuple[str, int]] = []

    class Watched(FakeContext):
        def decode(self, spans):
            reads.append((self.role, sum(len(span.tokens) for span in spans)))
            return super().decode(spans)

    model = random_model(9, seed=3)
    target, draft = Watched(model, 9), Watched(model, 9)
    target.role, draft.role = "target", "draft"
    costs = CostTable({1: 1.0, 2: 1.0, 32: 1.0})
    generation = Generation(
        Session(target),
        ChainDrafter([ModelDrafter(Session(draft), 9)]),
        AdaptiveController(costs, CostTable({1: 0.01, 32: 0.02})),
        Sampler(SamplingParams(temperature=0, max_tokens=8), 20),
        [1, 2, 3, 4] * 5,
        rule=RejectionRule(0),
        check=lambda token: None,
    )
    rounds = run(generation)
    first = next(rounds)
    assert reads == [("target", 20)] and len(first.tokens) == 1 and first.reading_seconds == 0.0
    second = next(rounds)
    assert reads[1] == ("draft", 20) and second.reading_seconds > 0.0 and second.num_drafted
    assert all(step.reading_seconds == 0.0 for step in rounds)


@pytest.mark.parametrize(
    ("unread", "left", "reads"), [(0, 99, False), (4, None, True), (30, 1, False), (5000, None, False)]
)
def test_a_prompt_is_read_by_the_draft_where_the_answer_can_pay_for_it(unread, left, reads):
    controller = AdaptiveController(CostTable({1: 1.0, 8: 1.5, 32: 4.0}), CostTable({1: 0.2, 32: 1.0}))
    assert controller.prefills_draft(unread, left) is reads
