"""Laws of a head that drafts for its own target: what comes out is the target's, and each cell's state is true."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from localspec.decoding.control import FixedLength, FixedPlan
from localspec.decoding.drafting import chain
from localspec.decoding.head_drafter import HeadDrafter
from localspec.decoding.loop import Generation
from localspec.decoding.model_drafter import ModelDrafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.decoding.verify import BlockRule, CoupledRule, RejectionRule
from localspec.errors import DecodeCancelled

from .fake_head import FakeHead, fake_head
from .fakes import blended, check_invariant, generate, random_model
from .joint import PROMPT, THRESHOLD, exact_joint, p_value

V = 12
TARGET, OTHER = random_model(V, seed=1), random_model(V, seed=2)
GREEDY = SamplingParams(temperature=0, max_tokens=40)
SHARES = {"perfect": 0.0, "mediocre": 0.45, "useless": 1.0}


@pytest.fixture(scope="module")
def plain() -> list[int]:
    sequence = [0, 1]
    for _ in range(40):
        sequence.append(int(TARGET(tuple(sequence)).argmax()))
    return sequence[2:]


def head_of(drafter: HeadDrafter) -> FakeHead:
    assert isinstance(drafter.session.context, FakeHead)
    return drafter.session.context


@pytest.mark.parametrize("depth", [None, 2, 3])
@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("num_draft_tokens", range(9))
def test_greedy_text_is_the_targets_own(share, depth, num_draft_tokens, plain):
    session, drafter = fake_head(TARGET, blended(TARGET, OTHER, share), V, depth)
    tokens, steps = generate(
        TARGET, drafter, n_vocab=V, params=GREEDY, num_draft_tokens=num_draft_tokens, session=session
    )
    assert tokens == plain
    most = num_draft_tokens if depth is None else min(num_draft_tokens, depth)
    assert max(step.num_drafted for step in steps) == most
    if share == 0.0:
        assert all(step.num_accepted == step.num_drafted for step in steps)


@pytest.mark.parametrize("depth", [None, 2])
@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
def test_between_rounds_each_cell_was_read_with_the_targets_state(share, depth):
    session, drafter = fake_head(TARGET, blended(TARGET, OTHER, share), V, depth)
    generation = Generation(
        session,
        drafter,
        FixedLength(4),
        Sampler(GREEDY, 2),
        [0, 1],
        rule=RejectionRule(0),
        check=lambda _: None,
    )
    while generation.finish_reason is None:
        span = generation.propose()
        generation.commit(span, generation.session.decode(span))
        check_invariant(generation, drafter)
        head_of(drafter).check()


def test_guesses_that_stand_are_read_again_with_true_states(monkeypatch):
    """Kept, they would spoil what is drafted later, and nothing else would show it."""
    monkeypatch.setattr(HeadDrafter, "rollback", ModelDrafter.rollback)
    with pytest.raises(AssertionError):
        test_between_rounds_each_cell_was_read_with_the_targets_state(0.0, None)


def test_it_is_stopped_where_its_layers_end(monkeypatch):
    monkeypatch.setattr(HeadDrafter, "_can_read", ModelDrafter._can_read)
    with pytest.raises(AssertionError, match="deeper"):
        test_between_rounds_each_cell_was_read_with_the_targets_state(0.0, 2)


@pytest.mark.parametrize("make_rule", [RejectionRule, BlockRule, CoupledRule])
@pytest.mark.parametrize("depth", [None, 2])
def test_the_joint_distribution_is_the_targets(make_rule, depth):
    target, other = random_model(3, seed=11, scale=1.2), random_model(3, seed=12, scale=1.2)
    session, drafter = fake_head(target, blended(target, other, 0.5), 3, depth)
    params = SamplingParams(temperature=1.0, max_tokens=6, top_k=0, top_p=1.0, min_p=0.0)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(2000):
        tokens, _ = generate(
            target, drafter, n_vocab=3, params=params, prompt=PROMPT, num_draft_tokens=3, seed=seed,
            make_rule=make_rule, session=session, enough=4,
        )  # fmt: skip
        counts[tuple(tokens[:4])] += 1
    assert p_value(exact_joint(target, params, 3, 4), counts) > THRESHOLD


def without_first(model):
    """A head that cannot draft the first token."""

    def row(sequence):
        logits = model(sequence).copy()
        logits[0] = -np.inf
        return logits

    return row


@pytest.mark.parametrize("make_rule", [RejectionRule, BlockRule, CoupledRule])
def test_the_joint_distribution_is_the_targets_behind_a_head_that_drafts_some_tokens_only(make_rule):
    target, other = random_model(3, seed=11, scale=1.2), random_model(3, seed=12, scale=1.2)
    session, drafter = fake_head(target, without_first(blended(target, other, 0.5)), 3)
    params = SamplingParams(temperature=1.0, max_tokens=6, top_k=0, top_p=1.0, min_p=0.0)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(2000):
        tokens, _ = generate(
            target, drafter, n_vocab=3, params=params, prompt=PROMPT, num_draft_tokens=3, seed=seed,
            make_rule=make_rule, session=session, enough=4,
        )  # fmt: skip
        counts[tuple(tokens[:4])] += 1
    assert p_value(exact_joint(target, params, 3, 4), counts) > THRESHOLD


def test_callbacks_are_given_finite_rows_whatever_the_head_can_draft():
    seen: list[bool] = []

    def centred(history, logits):
        seen.append(bool(np.isfinite(logits).all()))
        return logits - logits.mean()

    session, drafter = fake_head(TARGET, without_first(TARGET), V)
    session.forward([0], num_logits=0)
    sampler = Sampler(GREEDY, 2, processors=(centred,), n_vocab=V)
    drafter.begin([0, 1])
    draft = drafter.propose([0, 1], FixedPlan(4), sampler, RejectionRule(0).round(2))
    assert len(draft.tokens) == 4 == len(seen)
    assert all(seen)
    assert 0 not in draft.tokens


@pytest.mark.parametrize("make_rule", [CoupledRule])
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4, 8])
def test_a_seed_gives_the_same_text_with_it_and_without(make_rule, num_draft_tokens):
    params = SamplingParams(temperature=1.0, max_tokens=30)
    session, drafter = fake_head(TARGET, blended(TARGET, OTHER, 0.4), V)
    drafted, _ = generate(
        TARGET, drafter, n_vocab=V, params=params, num_draft_tokens=num_draft_tokens, seed=7,
        make_rule=make_rule, session=session,
    )  # fmt: skip
    alone, _ = generate(
        TARGET, drafter, n_vocab=V, params=params, num_draft_tokens=0, seed=7, make_rule=make_rule
    )
    assert drafted == alone


def test_behind_what_another_drafter_proposed_it_stays_silent(plain):
    """Of tokens that the target has not read no hidden state is known."""
    session, drafter = fake_head(TARGET, TARGET, V)
    sequence = [0, 1, *plain[:10]]
    session.align(sequence)
    session.forward(sequence[:-1], num_logits=0)
    drafter.begin(sequence)
    ahead = [*sequence, plain[10]]
    asked = FixedPlan(4), Sampler(GREEDY, 2), RejectionRule(0).round(len(ahead))
    assert drafter.propose(ahead, *asked).tokens == ()
    assert drafter.propose(sequence, FixedPlan(4), *asked[1:]).tokens == tuple(plain[10:14])


def test_behind_repetitions_it_drafts_where_nothing_repeats_itself(plain):
    session, drafter = fake_head(TARGET, TARGET, V)
    tokens, steps = generate(
        TARGET, chain(drafter), n_vocab=V, params=GREEDY, num_draft_tokens=4, session=session
    )
    assert tokens == plain
    assert all(step.num_accepted == step.num_drafted for step in steps if step.num_drafted == 4)


def test_after_a_cancelled_round_the_next_answer_is_as_of_a_fresh_engine(plain):
    session, drafter = fake_head(TARGET, blended(TARGET, OTHER, 0.3), V)
    for context in (session.context, drafter.session.context):
        context.fail_with = DecodeCancelled("stopped", code=2)
        with pytest.raises(DecodeCancelled):
            generate(TARGET, drafter, n_vocab=V, params=GREEDY, session=session)
        generate(TARGET, drafter, n_vocab=V, params=GREEDY, session=session, enough=7)
        again, steps = generate(TARGET, drafter, n_vocab=V, params=GREEDY, session=session)
        fresh_session, fresh = fake_head(TARGET, blended(TARGET, OTHER, 0.3), V)
        expected, fresh_steps = generate(TARGET, fresh, n_vocab=V, params=GREEDY, session=fresh_session)
        assert again == expected == plain
        count = [sum(step.num_accepted for step in found) for found in (steps, fresh_steps)]
        assert count[0] == count[1]
        head_of(drafter).check()
