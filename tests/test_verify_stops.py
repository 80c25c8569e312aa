"""Drafts whose length is decided on the way: exact when the rule looks before the draw, and only then.

The controller's own rules run here, through the real drafters, in rational arithmetic.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.control import MODEL, NGRAM, FixedPlan
from localspec.decoding.costs import CostTable
from localspec.decoding.model_drafter import ModelDrafter
from localspec.decoding.session import Session
from localspec.decoding.verify import Draft

from .enumeration import alone, completed, exact_point, random_tree
from .fakes import FakeContext
from .mutation import planted
from .toy_rounds import copied_then_drawn, drawn, dropping, emitted

K = 3
V = 2
PROMPT = (1,)
RULES = ["rejection", "block", "coupled"]


def trees(seed):
    return random_tree(seed, K, seed % 2 == 0, V), random_tree(seed + 1000, K, seed % 3 == 0, V)


def is_exact(rule, target, propose):
    return completed(emitted(rule, target, propose), target, K + 1) == alone(target, K + 1)


STOPS = {
    "unsure": lambda tokens, probs: max(probs.probs) < Fraction(3, 5),
    "unsure behind the first": lambda tokens, probs: len(tokens) > 0 and max(probs.probs) < Fraction(2, 3),
    "after a drawn 0, which is kept": lambda tokens, probs: tokens[-1:] == (0,),
    "the whole path unlikely": lambda tokens, probs: len(tokens) > 1 and tokens[0] != tokens[1],
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("stop", list(STOPS))
@pytest.mark.parametrize("seed", range(8))
def test_rules_that_look_before_the_draw_are_exact(rule, stop, seed):
    target, draft = trees(seed)
    assert is_exact(rule, target, drawn(draft, K, STOPS[stop]))
    assert is_exact(rule, target, copied_then_drawn((seed % 2,), draft, K, STOPS[stop]))


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_looks_at_the_drawn_token_is_not(rule):
    """Taking back what was drawn is a bias, except where no token depends on the draft."""
    exact = []
    for seed in range(8):
        target, draft = trees(seed)
        exact.append(is_exact(rule, target, dropping(draft, K, Fraction(1, 3))))
    assert all(exact) if rule == "coupled" else not all(exact)


# --- the controller's own


class TreeSampler:
    """A sampler whose distributions are those of a tree, behind PROMPT."""

    reads_history = True

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def __call__(self, row: Any, history: Any) -> Any:
        return self._tree[tuple(history[len(PROMPT) :])]


def model_drafter(tree):
    """The real drafter; its confidence comes from rows that hold the tree's probabilities."""

    def row(prefix):
        full = np.full(V, -np.inf, dtype=np.float32)
        probs = tree[prefix[len(PROMPT) :]]
        full[probs.tokens] = np.log(probs.probs.astype(float))
        return full

    return ModelDrafter(Session(FakeContext(row, V)), V)


def controller(draft_seconds: float) -> AdaptiveController:
    """Wide passes are cheap here, passes of the draft are not: how sure it is decides."""
    return AdaptiveController(CostTable({1: 1.0, 2: 1.05, 3: 1.1, 4: 1.15}), CostTable({1: draft_seconds}))


def planned(tree, make_plan, lengths, num_copied=0):
    """What the real drafter proposes under a plan; the lengths of its drafts go into a set."""
    sampler = TreeSampler(tree)

    def propose(round_):
        plan, drafter = make_plan(), model_drafter(tree)
        copied = []
        while len(copied) < num_copied and plan.take(NGRAM, 20 + len(copied)):
            copied.append(len(copied) % 2)
        free = Draft(tuple(copied), tuple(map(exact_point, copied)))
        drawn_ones = drafter.propose([*PROMPT, *copied], plan, sampler, Shifted(round_))
        lengths.add(len(free.tokens) + len(drawn_ones.tokens))
        return free + drawn_ones

    return propose


class Shifted:
    """Positions of a sequence, of which the trees know the part behind PROMPT."""

    def __init__(self, round_: Any) -> None:
        self._round = round_

    def draw(self, probs: Any, position: int) -> int:
        return self._round.draw(probs, position - len(PROMPT))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("num_copied", [0, 1])
@pytest.mark.parametrize("draft_seconds", [0.35, 0.45])
def test_the_controllers_plan_is_exact(rule, num_copied, draft_seconds):
    seen = set()
    for seed in range(8):
        target, draft = trees(seed)
        lengths: set[int] = set()
        propose = planned(draft, lambda: controller(draft_seconds).plan(K, 1), lengths, num_copied)
        assert is_exact(rule, target, propose)
        seen |= lengths
    assert len(seen) > 1, "the plan must stop now and then"


@pytest.mark.parametrize("rule", RULES)
def test_a_plan_that_learned_from_earlier_rounds_is_exact(rule):
    """What a controller learned is past, too."""

    def learned():
        made = controller(0.3)
        for index in range(12):
            made.predictors[MODEL].observe(0.7, index % 3 == 0)
            made.average.observe(0.5)
        return made.plan(K, 1)

    for seed in range(4):
        target, draft = trees(seed)
        assert is_exact(rule, target, planned(draft, learned, set()))


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_the_real_drafter_asking_after_the_draw_would_be_seen(rule):
    broken = []
    with planted(
        "localspec.decoding.model_drafter",
        "ModelDrafter.propose",
        "token = round_.draw(draft_probs, len(sequence) + len(tokens))",
        "token = round_.draw(draft_probs, len(sequence) + len(tokens))\n"
        "        if draft_probs.prob(token) < 0.4: break",
    ):
        for seed in range(6):
            target, draft = trees(seed)
            broken.append(not is_exact(rule, target, planned(draft, lambda: FixedPlan(K), set())))
    assert any(broken)
