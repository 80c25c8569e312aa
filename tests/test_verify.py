"""The accept rule, exactly: in rational arithmetic over every outcome, and on its edges."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from localspec.decoding.noise import Noise, gumbel
from localspec.decoding.sampling import Distribution
from localspec.decoding.verify import Draft, Verdict, acceptance, rejection, residual

from .enumeration import alone, completed, random_tree
from .scripted_draws import P, Q, Scripted, dist

V = 3


def emitted(target, draft, num_draft_tokens) -> dict[tuple[int, ...], Fraction]:
    """Probability of every round's output, from the rule's own numbers."""
    outcomes: dict[tuple[int, ...], Fraction] = {}

    def add(tokens, distribution, probability):
        for token, p in zip(distribution.tokens, distribution.probs, strict=True):
            key = (*tokens, int(token))
            outcomes[key] = outcomes.get(key, Fraction(0)) + probability * p

    def walk(accepted, probability):
        if len(accepted) == num_draft_tokens:
            add(accepted, target[accepted], probability)
            return
        q, p = draft[accepted], target[accepted]
        for token, drawn in zip(q.tokens, q.probs, strict=True):
            chance = acceptance(p, q, int(token))
            if chance > 0:
                walk((*accepted, int(token)), probability * drawn * chance)
            if chance < 1:
                add(accepted, residual(p, q), probability * drawn * (1 - chance))

    walk((), Fraction(1))
    return outcomes


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4])
def test_a_round_has_exactly_the_targets_distribution(seed, num_draft_tokens):
    target = random_tree(seed, num_draft_tokens, zeros=seed % 2 == 0)
    draft = random_tree(seed + 1000, num_draft_tokens, zeros=seed % 3 == 0)
    length = num_draft_tokens + 1
    assert completed(emitted(target, draft, num_draft_tokens), target, length) == alone(target, length)


@pytest.mark.parametrize("seed", range(10))
def test_point_mass_drafts_too(seed):
    target = random_tree(seed, 3, zeros=True)
    rng = random.Random(seed)
    draft = {
        prefix: Distribution(np.array([rng.randrange(V)]), np.array([Fraction(1)], dtype=object))
        for prefix in target
    }
    assert completed(emitted(target, draft, 3), target, 4) == alone(target, 4)


@pytest.mark.parametrize("seed", range(20))
def test_acceptance_is_the_overlap(seed):
    """The chance that one drafted token stands is sum(min(p, q))."""
    p, q = random_tree(seed, 0, True)[()], random_tree(seed + 50, 0, True)[()]
    chance = sum(drawn * acceptance(p, q, int(token)) for token, drawn in zip(q.tokens, q.probs, strict=True))
    assert chance == sum(min(p.prob(t), q.prob(t)) for t in range(V))


def test_rejection_beside_the_paper():
    draft = Draft((1, 0), (Q, Q))
    # p/q of token 1 is 1/3: 0.3 accepts it; token 0 has p/q = 5, always accepted; then the bonus.
    assert rejection([P, P, P], draft, Scripted(0.3, 0.99, 0.95)) == Verdict(2, 2)
    # 0.4 rejects: the residual is (0.4, 0, 0.2), so 0.5 draws token 0 and 0.7 token 2.
    assert rejection([P, P, P], draft, Scripted(0.4, 0.5)) == Verdict(0, 0)
    assert rejection([P, P, P], draft, Scripted(0.4, 0.7)) == Verdict(0, 2)


def test_an_undrawn_draft_is_a_point_mass():
    draft = Draft((1,))
    assert rejection([P, P], draft, Scripted(0.29, 0.0)).num_accepted == 1
    verdict = rejection([P, P], draft, Scripted(0.31, 0.99))
    assert verdict == Verdict(0, 2)  # and never token 1 again
    assert residual(P, draft.distribution(0)).prob(1) == 0


def test_a_token_the_target_cannot_emit_is_never_accepted():
    draft = Draft((7,), (dist(t7=1.0),))
    assert rejection([P, P], draft, Scripted(0.0, 0.0)).num_accepted == 0


def test_equal_distributions_accept_everything_and_never_divide_by_zero():
    draft = Draft((0, 1, 2), (P, P, P))
    assert rejection([P] * 4, draft, Scripted(0.999999, 0.999999, 0.999999, 0.0)).num_accepted == 3
    fallback = residual(P, P)
    assert np.isfinite(fallback.probs).all() and fallback.probs.sum() == pytest.approx(1)


def test_no_draft_draws_from_the_one_row():
    assert rejection([P], Draft(), Scripted(0.6)) == Verdict(0, 1)


def test_rows_behind_a_rejection_are_not_read():
    class Rows(list):
        def __getitem__(self, index):
            assert index == 0
            return super().__getitem__(index)

    assert rejection(Rows([P, P, P]), Draft((1, 1), (Q, Q)), Scripted(0.9, 0.0)).num_accepted == 0


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_sampling_never_returns_an_impossible_token(uniform):
    assert dist(t0=0.0, t3=1.0, t5=0.0).sample(uniform) == 3


def test_the_noise_of_a_token_does_not_depend_on_what_was_asked_before():
    """Draft and target ask for the same position with as many tokens, and not with the same ones."""
    sets = [np.array(tokens) for tokens in ((1, 2, 3), (1, 2, 4), (2, 3, 4), (1, 2), (7, 8, 9), (1, 2, 3))]
    noise = Noise(5)
    for position in (3, 4, 3):
        for tokens in sets:
            assert noise.at(position, tokens).tolist() == gumbel(5, position, tokens).tolist()
    every = np.arange(10)
    rows = [tuple(gumbel(seed, position, every)) for seed in (5, 6) for position in range(4)]
    assert len(set(rows)) == len(rows), "each seed and position has noise of its own"
    assert all(gumbel(5, 3, every)[token] == noise.at(3, np.array([token]))[0] for token in every)
