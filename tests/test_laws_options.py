"""Law: every option, on every row, leaves the joint distribution of the first K + 2 tokens the target's own.

Under rejection and block verification the loop is enumerated: no statistics, a fault of any size is seen. Coupled
noise is a hash and is counted, over many seeds; the same seed must give the same tokens with every drafter.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from localspec.decoding.drafting import ChainDrafter, Drafter, ForcedDrafter, NgramDrafter, NoDrafter
from localspec.decoding.verify import CoupledRule, RejectionRule, _BlockRound, _RejectionRound

from .fake_options import CASES, PROMPT, V
from .fakes import blended, generate, model_drafter, random_model
from .joint import THRESHOLD, p_value
from .loop_joint import answers, case_joint, distance, loop_joint
from .mutation import planted

TARGET = random_model(V, seed=11, scale=1.2)
OTHER = random_model(V, seed=12, scale=1.2)
MEDIOCRE = blended(TARGET, OTHER, 0.5)
K = 2
LENGTH = K + 2
RUNS = 1500
COMPARED = 400
"""Seeds whose texts are compared between drafters."""
ROUNDING = 1e-9
VISIBLE = 1e-3


def model() -> Drafter:
    return model_drafter(MEDIOCRE, V)


def ngram() -> Drafter:
    return NgramDrafter(1, 2)


def forced_first() -> Drafter:
    return ChainDrafter([ForcedDrafter(), NgramDrafter(2, 2), model_drafter(MEDIOCRE, V)])


DRAFTERS = {"model": model, "ngram": ngram, "chain": forced_first}
ROUNDS = {"rejection": _RejectionRound, "block": _BlockRound}


@cache
def expected(name: str) -> dict[tuple[int, ...], float]:
    return case_joint(TARGET, CASES[name], LENGTH)


def error(name: str, rule: str = "block", drafter: str = "model") -> float:
    """How far the loop is from the target's own distribution."""
    joint = loop_joint(
        TARGET, DRAFTERS[drafter], CASES[name], ROUNDS[rule], num_draft_tokens=K, length=LENGTH
    )
    assert sum(joint.values()) == pytest.approx(1)
    return distance(joint, expected(name))


@pytest.mark.parametrize("drafter", list(DRAFTERS))
@pytest.mark.parametrize("rule", list(ROUNDS))
@pytest.mark.parametrize("name", list(CASES))
def test_the_loop_has_the_targets_distribution(name, rule, drafter):
    assert error(name, rule, drafter) < ROUNDING


@pytest.mark.parametrize("name", list(CASES))
def test_coupled_texts_have_it_too_and_ignore_the_draft(name):
    def texts(make_drafter, runs):
        drafter = make_drafter()
        return answers(
            TARGET, drafter, CASES[name], CoupledRule, num_draft_tokens=K, length=LENGTH, runs=runs
        )

    plain = texts(NoDrafter, RUNS)
    assert p_value(expected(name), Counter(plain)) > THRESHOLD
    for kind in ("model", "ngram", "chain") if CASES[name].constraint else ("model", "ngram"):
        assert texts(DRAFTERS[kind], COMPARED) == plain[:COMPARED], kind


def test_the_cases_differ_from_each_other():
    """An option that does nothing on this target would prove nothing."""
    for name in CASES:
        if name not in ("ends", "logprobs"):
            assert distance(expected(name), expected("logprobs")) > VISIBLE, name
    assert distance(expected("min_tokens"), expected("ends")) > VISIBLE
    assert distance(expected("ignore_eos"), expected("ends")) > VISIBLE


@pytest.mark.parametrize("make_rule", [RejectionRule, CoupledRule])
@pytest.mark.parametrize("name", list(CASES))
def test_a_perfect_draft_is_accepted_whole_under_every_option(name, make_rule):
    """The draft's rows are shaped by the same options with the same history, and drawn with the noise they are judged
    by: what goes wrong there changes no text and is seen here alone."""
    assert acceptance(name, make_rule) == 1.0


def acceptance(name: str, make_rule: type = RejectionRule) -> float:
    case, drafted, accepted = CASES[name], 0, 0
    for seed in range(12):
        _, steps = generate(
            TARGET, model_drafter(TARGET, V), n_vocab=V, params=case.sampling(24), sampler=case.sampler(24),
            prompt=PROMPT, seed=seed, make_rule=make_rule, num_draft_tokens=3,
        )  # fmt: skip
        drafted += sum(step.num_drafted for step in steps)
        accepted += sum(step.num_accepted for step in steps)
    assert drafted > 50
    return accepted / drafted


LOOP, SAMPLER, DRAFTING = (
    "localspec.decoding.loop",
    "localspec.decoding.sampler",
    "localspec.decoding.model_drafter",
)
SHAPED = "self._sampler(self._rows[index], history)"
BLIND = "__import__('tests.fake_options', fromlist=['blind']).blind(self._sampler)"
HISTORY_OF_ROW_0 = (LOOP, "TargetRows.__getitem__", "self._committed + index", "self._committed")
HISTORY_ONE_SHORT = (LOOP, "TargetRows.__getitem__", "self._committed + index", "self._committed + index - 1")
LAST_ROW_ONLY = (
    LOOP, "TargetRows.__getitem__", SHAPED,
    f"(self._sampler if index + 1 == len(self) else {BLIND})(self._rows[index], history)",
)  # fmt: skip
FIRST_ROW_ONLY = (
    LOOP, "TargetRows.__getitem__", SHAPED,
    f"(self._sampler if index == 0 else {BLIND})(self._rows[index], history)",
)  # fmt: skip
LOOKS_BACK = [
    "repeat_penalty", "frequency_penalty", "presence_penalty", "min_tokens", "processors", "no token twice",
    "forced tokens",
]  # fmt: skip
SHAPES = [*LOOKS_BACK, "ignore_eos", "logit_bias", "typical_p", "top_n_sigma"]


@pytest.mark.parametrize("fault", [HISTORY_OF_ROW_0, HISTORY_ONE_SHORT], ids=["of row 0", "one short"])
@pytest.mark.parametrize("name", LOOKS_BACK)
def test_rows_with_a_wrong_history_are_seen(name, fault):
    with planted(*fault):
        assert error(name) > VISIBLE


@pytest.mark.parametrize("rule", list(ROUNDS))
@pytest.mark.parametrize("fault", [LAST_ROW_ONLY, FIRST_ROW_ONLY], ids=["last", "first"])
@pytest.mark.parametrize("name", SHAPES)
def test_an_option_on_one_row_only_is_seen(name, fault, rule):
    with planted(*fault):
        assert error(name, rule) > VISIBLE


FAULTS = {
    "an end one token early": (
        "min_tokens", SAMPLER, "Sampler._end_is_banned", "< params.min_tokens", "< params.min_tokens - 1",
    ),
    "the prompt counted as answer": (
        "min_tokens", SAMPLER, "Sampler._end_is_banned", "len(history) - self.num_prompt", "len(history)",
    ),
    "the prompt read as answer by the grammar": (
        "forced tokens", SAMPLER, "Sampler.__call__", "history[self.num_prompt :]", "history",
    ),
    "a callback's answer thrown away": (
        "processors", SAMPLER, "_processed", "given if returned is None else _reals(returned)",
        "given",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_planted_fault_is_seen(fault):
    name, *change = FAULTS[fault]
    drafter = "chain" if name == "forced tokens" else "model"
    with planted(*change):
        assert error(name, "block", drafter) > VISIBLE


DRAFT_FAULTS = {
    "drafts shaped with the history of the first": (DRAFTING, "ModelDrafter.propose", "history.append(token)", "pass"),
    "drafts shaped without a history": (
        DRAFTING, "ModelDrafter._distribution", "return sampler(row, history)",
        "return __import__('tests.fake_options', fromlist=['blind']).blind(sampler)(row, history)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKS_BACK)
@pytest.mark.parametrize("fault", list(DRAFT_FAULTS))
def test_drafts_without_an_options_history_are_seen(name, fault):
    """The text stays right: only acceptance falls."""
    with planted(*DRAFT_FAULTS[fault]):
        assert error(name) < ROUNDING
        assert acceptance(name) < 0.99


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        ("_CoupledRound.draw", "perturbed(probs, self.noise, position)", "perturbed(probs, self.noise, position + 1)"),
        ("_CoupledRound.draw", "perturbed(probs, self.noise, position)", "perturbed(probs, self.noise, self.position)"),
    ],
)  # fmt: skip
def test_drafts_drawn_with_the_noise_of_another_position_are_seen(function, right, wrong):
    with planted("localspec.decoding.verify", function, right, wrong):
        assert acceptance("logprobs", CoupledRule) < 0.9


@pytest.mark.parametrize("wrong", ["self.position", "2 * self.position + index"])
def test_coupled_noise_of_another_position_is_seen(wrong):
    with planted("localspec.decoding.verify", "_CoupledRound.verify", "self.position + index", wrong):
        plain, drafted = (
            answers(
                TARGET, make(), CASES["logprobs"], CoupledRule, num_draft_tokens=K, length=LENGTH, runs=300
            )
            for make in (NoDrafter, model)
        )
    assert plain != drafted
