"""Block verification, exactly: the real function in rational arithmetic over every draft and every outcome."""

from __future__ import annotations

import random

import pytest

from localspec.decoding.sampling import Distribution
from localspec.decoding.verify import Draft, Verdict, block, block_acceptance, block_weights, rejection

from .enumeration import alone, completed, exact_point, random_tree
from .mutation import planted
from .scripted_draws import P, Q, Scripted, dist
from .toy_rounds import copied_then_drawn, drawn, emitted, expected_tokens

SIZES = [(1, 3, 12), (2, 3, 12), (3, 2, 12), (3, 3, 3), (4, 2, 6)]
"""Drafted tokens, vocabulary, trees."""


def trees(num_draft_tokens, n_vocab, seed):
    """A target and a draft; two of three have impossible tokens in one of them."""
    return (
        random_tree(seed, num_draft_tokens, seed % 2 == 0, n_vocab),
        random_tree(seed + 1000, num_draft_tokens, seed % 3 == 0, n_vocab),
    )


def is_exact(rule, target, propose, num_draft_tokens):
    length = num_draft_tokens + 1
    return completed(emitted(rule, target, propose), target, length) == alone(target, length)


CASES = [(count, size, seed) for count, size, number in SIZES for seed in range(number)]


@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
@pytest.mark.parametrize(("num_draft_tokens", "n_vocab", "seed"), CASES)
def test_a_round_has_exactly_the_targets_distribution(rule, num_draft_tokens, n_vocab, seed):
    target, draft = trees(num_draft_tokens, n_vocab, seed)
    assert is_exact(rule, target, drawn(draft, num_draft_tokens), num_draft_tokens)


@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("num_copied", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_copied_tokens_followed_by_drawn_ones(rule, num_copied, seed):
    target, draft = trees(3, 2, seed)
    rng = random.Random(seed)
    copied = tuple(rng.randrange(2) for _ in range(num_copied))
    assert is_exact(rule, target, copied_then_drawn(copied, draft, 3), 3)


@pytest.mark.parametrize("seed", range(12))
def test_one_drafted_token_is_judged_as_by_rejection(seed):
    target, draft = trees(1, 3, seed)
    propose = drawn(draft, 1)
    assert emitted("block", target, propose) == emitted("rejection", target, propose)


@pytest.mark.parametrize("seed", range(12))
def test_tokens_that_were_not_drawn_are_judged_as_by_rejection(seed):
    target, _ = trees(3, 3, seed)
    rng = random.Random(seed)
    propose = copied_then_drawn(tuple(rng.randrange(3) for _ in range(3)), {}, 3)
    assert emitted("block", target, propose) == emitted("rejection", target, propose)


def test_block_commits_at_least_as_much_as_rejection():
    """Never fewer tokens in a round on average, and on most trees more."""
    gains = []
    for num_draft_tokens, n_vocab, seed in CASES:
        target, draft = trees(num_draft_tokens, n_vocab, seed)
        propose = drawn(draft, num_draft_tokens)
        gain = expected_tokens("block", target, propose) - expected_tokens("rejection", target, propose)
        assert gain >= 0
        assert gain == 0 or num_draft_tokens > 1
        gains.append(gain)
    assert sum(gain > 0 for gain in gains) > len(gains) / 3


@pytest.mark.parametrize("seed", range(10))
def test_a_prefix_stands_with_its_own_weight(seed):
    """P(at least i tokens stand | the draft) = w_i, whatever comes behind it."""
    target, draft = trees(3, 2, seed)
    path = [random.Random(seed).randrange(2) for _ in range(3)]
    tokens: tuple[int, ...] = ()
    for token in path:
        probs = draft[tokens]
        tokens = (*tokens, token if probs.prob(token) else int(probs.tokens[0]))
    one = Draft(tokens, tuple(draft[tokens[:i]] for i in range(3)))
    rows = [target[tokens[:i]] for i in range(4)]
    weights = block_weights(rows, one)
    assert weights[0] == 1 and all(0 < weight <= 1 for weight in weights)
    assert all(0 <= block_acceptance(rows, one, weights, i) <= 1 for i in range(1, len(weights)))


FAULTS = {
    "h without Z": (
        "block_acceptance", "excess / (excess + 1 - weight) if weight < 1 else 1", "weight",
    ),
    "h of the last token as of the others": (
        "block_acceptance", "if count == len(draft.tokens):\n        return weight",
        "if count == len(draft.tokens):\n        return weight * weight",
    ),
    "the first failure instead of the largest success": (
        "block", "for count in range(len(weights) - 1, 0, -1):",
        "kept = 0\n"
        "    for count in range(1, len(weights)):\n"
        "        if uniforms.random() >= block_acceptance(target_probs, draft, weights, count): break\n"
        "        kept = count\n"
        "    return Verdict(kept, _after_block(target_probs, draft, weights[kept], kept, uniforms))\n"
        "    for count in range(0):",
    ),
    "the recovered token without w": (
        "_after_block", "_excess(following, draft.distribution(count), weight)",
        "_excess(following, draft.distribution(count), 1)",
    ),
    "Z without w": (
        "block_acceptance", "_excess(target_probs[count], draft.distribution(count), weight)",
        "_excess(target_probs[count], draft.distribution(count), 1)",
    ),
    "w not capped at 1": ("block_weights", "min(weights[-1] * ratio, 1)", "weights[-1] * ratio"),
    "w of one token alone": ("block_weights", "min(weights[-1] * ratio, 1)", "min(ratio, 1)"),
    "the recovered token from the target": (
        "_after_block", "if count == len(draft.tokens):", "if True:",
    ),
    "the bonus token from the row before": (
        "_after_block", "return following.sample(uniforms.random())\n    mass",
        "return target_probs[max(count - 1, 0)].sample(uniforms.random())\n    mass",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_planted_fault_is_seen(fault):
    with planted("localspec.decoding.verify", *FAULTS[fault]):
        broken = []
        for num_draft_tokens, n_vocab, seed in CASES:
            target, draft = trees(num_draft_tokens, n_vocab, seed)
            broken.append(not is_exact("block", target, drawn(draft, num_draft_tokens), num_draft_tokens))
            if broken[-1]:
                break
    assert broken[-1]


# --- on its edges


def test_block_beside_the_paper():
    draft = Draft((1, 0), (Q, Q))
    rows = [P, P, P]
    # w_1 = .3 / .9 = 1/3; w_2 = min(1/3 * .5 / .1, 1) = 1; Z_1 = max(.5/3 - .1, 0) + 0 + .2/3 = .1333
    weights = block_weights(rows, draft)
    assert weights == pytest.approx([1, 1 / 3, 1])
    assert block_acceptance(rows, draft, weights, 1) == pytest.approx(0.13333 / (0.13333 + 2 / 3), abs=1e-4)
    # h_2 = 1: both stand, where rejection would refuse the first two times out of three.
    assert block(rows, draft, Scripted(0.99, 0.95)) == Verdict(2, 2)
    assert rejection(rows, draft, Scripted(0.4, 0.5)).num_accepted == 0


def test_a_longer_prefix_stands_though_a_shorter_one_failed():
    draft = Draft((1, 1, 0), (Q, Q, Q))
    rows = [P] * 4
    # Tried from the end: the third succeeds at once, and nobody asks about the others.
    assert block(rows, draft, Scripted(0.5, 0.0)) == Verdict(3, 0)
    # w = 1/3, 1/9, 5/9: .9 refuses the third, h_2 = Z / (Z + 8/9) with Z = .02/9... lets .0 pass.
    verdict = block(rows, draft, Scripted(0.9, 0.0, 0.0))
    assert verdict.num_accepted == 2 and verdict.next_token in (0, 2)


def test_an_undrawn_draft_is_a_point_mass():
    for first in (0.29, 0.31):
        numbers = (first, 0.99)
        assert block([P, P], Draft((1,)), Scripted(*numbers)) == rejection(
            [P, P], Draft((1,)), Scripted(*numbers)
        )
    mixed = Draft((1,)) + Draft((0,), (Q,))
    explicit = Draft((1, 0), (Distribution.point(1), Q))
    for numbers in ((0.1, 0.2, 0.3), (0.9, 0.2, 0.3), (0.9, 0.9, 0.99)):
        assert block([P] * 3, mixed, Scripted(*numbers)) == block([P] * 3, explicit, Scripted(*numbers))


def test_a_token_the_target_cannot_emit_ends_what_can_stand():
    """And no row behind it is read."""

    class Rows(list):
        def __getitem__(self, index):
            assert index <= 1
            return super().__getitem__(index)

    draft = Draft((0, 7, 0), (Q, dist(t7=1.0), Q))
    # w_1 = 1: the first stands whatever is drawn, the second never.
    assert block(Rows([P] * 4), draft, Scripted(0.999, 0.0)) == Verdict(1, 0)


def test_equal_distributions_accept_everything_and_never_divide_by_zero():
    draft = Draft((0, 1, 2), (P, P, P))
    assert block([P] * 4, draft, Scripted(0.999999, 0.0)) == Verdict(3, 0)
    almost = Distribution(P.tokens, P.probs * (1 + 1e-16))
    assert block([almost] * 4, draft, Scripted(0.999999, 0.0)).num_accepted == 3


def test_no_draft_draws_from_the_one_row():
    assert block([P], Draft(), Scripted(0.6)) == Verdict(0, 1)
    assert block([exact_point(4)], Draft(), Scripted(0.6)) == Verdict(0, 4)
