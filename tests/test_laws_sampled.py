"""Law: the joint distribution of the first K + 2 tokens is the target's, for every drafter and option.

K + 2 tokens reach into the round behind a full acceptance: a wrong bonus token cannot hide.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from localspec.decoding.control import FixedLength, FixedPlan
from localspec.decoding.drafting import Drafter, NgramDrafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.verify import BlockRule, CoupledRule, RejectionRule, Rule

from .fakes import blended, generate, model_drafter, random_model
from .joint import THRESHOLD, count_joint, exact_joint, p_value
from .mutation import planted

V = 3
TARGET = random_model(V, seed=11, scale=1.2)
OTHER = random_model(V, seed=12, scale=1.2)
MEDIOCRE = blended(TARGET, OTHER, 0.5)
RUNS = 2000

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
OPTIONS = {
    "none": OFF,
    "top_k": {**OFF, "top_k": 2},
    "top_p": {**OFF, "top_p": 0.75},
    "min_p": {**OFF, "min_p": 0.25},
    "penalties": {**OFF, "repeat_penalty": 1.6, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    "bias": {**OFF, "logit_bias": {1: 0.9}},
    "all": {
        "top_k": 2, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.3, "frequency_penalty": 0.2,
        "repeat_last_n": 3, "logit_bias": {0: -0.4},
    },
}  # fmt: skip


def law(
    make_drafter: Callable[[], Drafter],
    *,
    temperature: float = 1.0,
    options: str = "none",
    num_draft_tokens: int = 2,
    runs: int = RUNS,
    make_controller: Callable[[], object] | None = None,
    make_rule: Callable[[int], Rule] = RejectionRule,
) -> float:
    """p-value of the law on the full loop."""
    length = num_draft_tokens + 2
    params = SamplingParams(temperature=temperature, max_tokens=length + 1, **OPTIONS[options])
    counts = count_joint(
        TARGET, make_drafter, params, n_vocab=V, num_draft_tokens=num_draft_tokens, length=length, runs=runs,
        make_controller=make_controller, make_rule=make_rule,
    )  # fmt: skip
    return p_value(exact_joint(TARGET, params, V, length), counts)


def mediocre() -> Drafter:
    return model_drafter(MEDIOCRE, V)


def useless() -> Drafter:
    return model_drafter(OTHER, V)


def padded() -> Drafter:
    """A draft with two ids more than the target: they must never be proposed."""
    return model_drafter(random_model(V + 2, seed=13), V + 2, target_vocab=V)


class PastStop(FixedLength):
    """A stop rule that looks at the past only: 2 tokens in every other round, else 1."""

    def __init__(self) -> None:
        super().__init__(2)
        object.__setattr__(self, "rounds", [])

    def plan(self, limit, length, num_pending=1):
        return FixedPlan(min(limit, 1 + len(self.rounds) % 2))

    def observe(self, step):
        self.rounds.append(step)


class ConfidentPlan(FixedPlan):
    """Stops at a token the draft is unsure of, before it is drawn."""

    def take(self, drafter, confidence):
        return confidence > 0.55 and super().take(drafter, confidence)


class ConfidentStop(FixedLength):
    def plan(self, limit, length, num_pending=1):
        return ConfidentPlan(min(self.num_draft_tokens, limit))


@cache
def right(temperature: float = 1.0, options: str = "none", **settings: Any) -> float:
    """p-value of the law on the source as it is."""
    return law(mediocre, temperature=temperature, options=options, **settings)


def is_seen(settings: dict[str, Any]) -> bool:
    """Whether what is planted breaks the law: most faults show in few runs already."""
    return any(law(mediocre, runs=runs, **settings) < THRESHOLD for runs in (RUNS // 4, RUNS, 4 * RUNS))


ENDS = ("none", "all")
"""Options with which a second temperature, or a second drafter, is tried: the least there can be and the most."""


@pytest.mark.parametrize(
    ("temperature", "options"),
    [*((1.0, options) for options in OPTIONS), *((each, options) for each in (0.3, 2.0) for options in ENDS)],
)
def test_model_draft(temperature, options):
    assert right(temperature, options) > THRESHOLD


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 3])
def test_other_lengths(num_draft_tokens):
    assert law(mediocre, num_draft_tokens=num_draft_tokens) > THRESHOLD


@pytest.mark.parametrize("make_drafter", [useless, padded, lambda: NgramDrafter(1, 2)])
def test_other_drafters(make_drafter):
    assert law(make_drafter) > THRESHOLD


@pytest.mark.parametrize("make_controller", [PastStop, lambda: ConfidentStop(3)])
def test_stop_rules_that_look_before_the_draw(make_controller):
    assert law(mediocre, make_controller=make_controller) > THRESHOLD


@pytest.mark.parametrize(
    ("options", "make_drafter"),
    [
        *((options, mediocre) for options in OPTIONS),
        *((options, lambda: NgramDrafter(1, 2)) for options in ENDS),
    ],
)
def test_coupled(options, make_drafter):
    assert law(make_drafter, options=options, make_rule=CoupledRule) > THRESHOLD


@pytest.mark.parametrize(("options", "num_draft_tokens"), [("none", 2), ("none", 3), ("all", 2)])
def test_block(options, num_draft_tokens):
    """With the numbers that the rule really draws; test_laws_options.py takes every outcome instead."""
    found = law(mediocre, options=options, num_draft_tokens=num_draft_tokens, make_rule=BlockRule)
    assert found > THRESHOLD


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_coupled_texts_do_not_depend_on_the_draft(temperature):
    """The same seed gives the same ids with any drafter, any length and any schedule, or none."""
    params = SamplingParams(temperature=temperature, max_tokens=30, **OPTIONS["penalties"])
    for seed in range(5):
        texts = {
            tuple(generate(
                TARGET, make_drafter(), n_vocab=V, params=params, num_draft_tokens=k, seed=seed,
                make_rule=CoupledRule, controller=make_controller() if make_controller else None,
            )[0])
            for make_drafter in (mediocre, useless, padded, lambda: NgramDrafter(1, 2))
            for k, make_controller in ((0, None), (1, None), (4, None), (8, None), (0, PastStop))
        }  # fmt: skip
        assert len(texts) == 1


def test_coupled_agrees_more_than_independent_draws():
    params = SamplingParams(temperature=1.0, max_tokens=400, **OFF)
    rates = {}
    for make_rule in (CoupledRule, RejectionRule):
        _, steps = generate(TARGET, mediocre(), n_vocab=V, params=params, make_rule=make_rule, n_ctx=500)
        rates[make_rule] = sum(s.num_accepted for s in steps) / sum(s.num_drafted for s in steps)
    overlap = rates[RejectionRule]
    assert overlap - 0.15 < rates[CoupledRule] < overlap + 0.05


MUTATIONS = {
    "q is not the distribution the token was drawn from": (
        "localspec.decoding.model_drafter", "ModelDrafter.propose",
        "probs.append(draft_probs)",
        "probs.append(type(sampler)(type(sampler.params)(1.0, 0, 1.0, 0.0))(row, history))",
        {"temperature": 2.0},
    ),
    "an argmax draft tested with the soft q": (
        "localspec.decoding.model_drafter", "ModelDrafter.propose",
        "round_.draw(draft_probs, len(sequence) + len(tokens))",
        "int(draft_probs.tokens[draft_probs.probs.argmax()])", {},
    ),
    "the residual of the target against itself": (
        "localspec.decoding.verify", "residual",
        "_excess(target_probs, draft_probs, 1)", "_excess(target_probs, target_probs, 1)", {},
    ),
    "the recovered token drawn from the target": (
        "localspec.decoding.verify", "rejection",
        "residual(target_probs[index], draft_probs).sample", "target_probs[index].sample", {},
    ),
    "q taken as 1": (
        "localspec.decoding.verify", "acceptance", "/ draft_probs.prob(token)", "/ 1.0", {},
    ),
    "the bonus token from the wrong row": (
        "localspec.decoding.verify", "rejection",
        "target_probs[len(draft.tokens)].sample", "target_probs[max(len(draft.tokens) - 1, 0)].sample", {},
    ),
    "a token dropped after it was drawn": (
        "localspec.decoding.model_drafter", "ModelDrafter.propose",
        "token = round_.draw(draft_probs, len(sequence) + len(tokens))",
        "token = round_.draw(draft_probs, len(sequence) + len(tokens))\n"
        "        if draft_probs.prob(token) < 0.4: return Draft(tuple(tokens), tuple(probs))",
        {},
    ),
    "one noise for the proposal and its acceptance": (
        "localspec.decoding.loop", "Generation.commit",
        "self._round.verify(target_probs, self._draft)",
        "self._rule.round(len(self.sequence)).verify(target_probs, self._draft)", {},
    ),
    "the same noise in every round": (
        "localspec.decoding.loop", "Generation.propose",
        "self._rule.round(len(self.sequence))", "self._rule.round(0)", {},
    ),
    "coupled noise keyed by the round instead of the position": (
        "localspec.decoding.verify", "_CoupledRound.verify",
        "self.position + index", "self.position", {"make_rule": CoupledRule},
    ),
    "penalties that do not see the drafted tokens": (
        "localspec.decoding.loop", "TargetRows.__getitem__",
        "self._committed + index", "self._committed", {"options": "penalties"},
    ),
    "penalties on the target only": (
        "localspec.decoding.model_drafter", "ModelDrafter.propose",
        "probs.append(draft_probs)",
        "probs.append(sampler(row, list(sequence)))", {"options": "penalties"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(MUTATIONS))
def test_a_planted_fault_breaks_the_law(fault):
    module, function, present, wrong, settings = MUTATIONS[fault]
    assert right(**settings) > THRESHOLD
    with planted(module, function, present, wrong):
        assert is_seen(settings)


def test_ids_outside_the_targets_vocabulary_would_be_seen():
    params = SamplingParams(max_tokens=30, **OFF)
    with (
        planted(
            "localspec.decoding.model_drafter", "ModelDrafter.propose", "row = row[: self._shared]", "pass"
        ),
        pytest.raises(AssertionError, match="outside the vocabulary"),
    ):
        generate(TARGET, padded(), n_vocab=V, params=params)
