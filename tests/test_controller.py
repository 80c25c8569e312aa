"""The controller decision by decision: what a round teaches it, what a plan may risk, what a new answer forgets."""

from __future__ import annotations

import pytest

from localspec.decoding.adaptive import (
    FIRST_PROBE,
    LAST_PROBE,
    AdaptiveController,
    match_length,
    model_confidence,
)
from localspec.decoding.control import MODEL, NGRAM
from localspec.decoding.costs import CostTable
from localspec.decoding.estimates import LEAST_CREDIT, SURPLUS_STEPS, Average, Buckets, Ledger
from localspec.decoding.stats import Step

CONFIDENCES = (0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 0.95, 0.97, 0.99)


def controller(draft: float | None = 0.1, target: dict[int, float] | None = None) -> AdaptiveController:
    """Plain decoding takes a second a token; wider passes hardly more."""
    costs = CostTable(target or {1: 1.0, 16: 1.3})
    return AdaptiveController(costs, None if draft is None else CostTable({1: draft}), max_width=16)


def step(*tokens: int, accepted: int = 0, seconds: float = 1.0, **given) -> Step:
    facts = {"width": 1, "length": 0, "num_prefilled": 0, "num_drafted": accepted, "bonus": False} | given
    return Step(
        tokens=tokens, num_accepted=accepted, finish_reason=None, target_seconds=facts.pop("target", seconds),
        draft_seconds=facts.pop("draft_seconds", 0.0), seconds=seconds, **facts,
    )  # fmt: skip


def drafted(control: AdaptiveController, *confidences: float) -> None:
    """The next round drafted tokens of the model with these confidences."""
    plan = control.plan(15, 0)
    plan.taken += [(MODEL, confidence) for confidence in confidences]
    plan.pass_seconds = 0.1 * len(confidences)


@pytest.mark.parametrize("accepted", [0, 1, 3, 4])
def test_tokens_behind_a_refused_one_teach_nothing(accepted):
    """Nobody looked at them."""
    control = controller()
    confidences = (0.1, 0.3, 0.7, 0.95)
    drafted(control, *confidences)
    control.observe(step(*range(accepted + 1), accepted=accepted, num_drafted=4))
    buckets, average = model_confidence(), Average(prior=0.88, weight=10.0)
    for index, confidence in enumerate(confidences[: accepted + 1]):
        buckets.observe(confidence, index < accepted)
        average.observe(float(index < accepted))
    learned = control.predictors[MODEL]
    assert [learned.predict(c) for c in CONFIDENCES] == [buckets.predict(c) for c in CONFIDENCES]
    assert control.average.value == average.value


def test_a_new_answer_begins_as_the_first_one():
    control, fresh = controller(), controller()
    for _ in range(6):
        drafted(control, 0.95, 0.95)
        control._plan.probing = True
        control.observe(step(1, num_drafted=2, seconds=3.0, target=1.0))
    control.begin()
    assert control.average.value == fresh.average.value
    assert all(
        control.predictors[MODEL].predict(c) == fresh.predictors[MODEL].predict(c) for c in CONFIDENCES
    )
    assert (control.ledger, control.rate(15, 0)) == (fresh.ledger, pytest.approx(1 / control.target.time(1)))
    assert tokens_to_the_next_probe(control) == FIRST_PROBE


def tokens_to_the_next_probe(control: AdaptiveController, a_round: int = 1) -> int:
    for count in range(0, 4 * LAST_PROBE, a_round):
        if control.probe_due(0):
            return count
        control.plan(15, 0)
        control.observe(step(*range(a_round)))
    raise AssertionError("never probed again")


def test_a_draft_that_fails_is_tried_less_and_less_often_and_never_given_up():
    control = controller()
    assert tokens_to_the_next_probe(control) == FIRST_PROBE
    waits = []
    for _ in range(5):
        drafted(control, 0.5)
        control._plan.probing = True
        control.observe(step(1, num_drafted=1, seconds=2.0, target=1.0))
        waits.append(tokens_to_the_next_probe(control))
    assert waits == [32, 64, 128, 128, 128]
    drafted(control, 0.5)
    control._plan.probing = True
    control.observe(step(1, 2, accepted=1, seconds=1.1, target=1.0))
    assert tokens_to_the_next_probe(control) == FIRST_PROBE


def test_the_wait_for_a_probe_is_counted_in_tokens():
    assert tokens_to_the_next_probe(controller(), a_round=4) == FIRST_PROBE


def test_the_rate_is_what_is_reached_and_at_least_plain_decoding():
    control = controller()
    control.plan(15, 0)
    control.observe(step(1, 2, 3, 4, seconds=3.0))
    assert control.rate(15, 0) == pytest.approx(4 / 3)
    control.observe(
        step(1, 2, 3, 4, 5, 6, 7, 8, seconds=1.0)
    )  # luck: more than any draft is expected to give
    assert 4 / 3 < control.rate(15, 0) < 12 / 4
    for _ in range(60):
        control.plan(15, 0)
        control.observe(step(1, seconds=3.0, target=1.0))
    assert control.rate(15, 0) == pytest.approx(1 / control.target.time(1))


def test_a_piece_of_the_prompt_teaches_nothing():
    control = controller()
    for prefilled in (step(1, seconds=50.0, num_prefilled=40), step(seconds=50.0)):
        control.observe(prefilled)
    assert control.target.time(1) == 1.0 and control.ledger.elapsed == 0.0 and control.rate(15, 0) == 1.0


@pytest.mark.parametrize(("draft", "taken"), [(0.9, True), (None, True), (0.05, False)])
def test_a_doubtful_copy_is_taken_where_the_model_would_cost_more_than_it_brings(draft, taken):
    """At .9 of a step for each token the model never pays, its first pass included."""
    assert controller(draft).plan(8, 0).take(NGRAM, 4) is taken


def test_a_draft_goes_on_only_while_its_whole_loss_can_be_borne():
    """The passes that were made count too: if every token is refused, all of it is lost."""
    control = controller(0.5, dict.fromkeys(range(1, 17), 1.0))
    for _ in range(400):
        control.average.observe(1.0)
        control.predictors[MODEL].observe(0.99, True)
    plan, bearable = control.plan(15, 0), control.ledger.stake(1.0)
    while plan.pays_for_pass(MODEL, 1) and plan.take(MODEL, 0.99):
        pass
    assert len(plan.taken) >= 2
    assert plan.pass_seconds <= bearable < plan.pass_seconds + 0.5


def test_times_kept_for_one_limit_are_not_those_of_another():
    control = controller(None, {1: 1.0, 4: 1.2, 16: 9.0})
    for limit in (3, 15, 7):
        assert len(control.calm_times(limit, 0)) == limit + 1
    assert control.plan(3, 0).take(NGRAM, 30) and control.plan(15, 0).take(NGRAM, 30)


def test_kept_times_follow_the_machine_once():
    control = controller()
    for _ in range(20):
        control.target.rescale(2.0)
    assert control.target.scale > 3
    assert control.calm_times(4, 0) == pytest.approx([0.0, 1.0, 1.02, 1.04, 1.06])


def test_a_plain_pass_is_never_padded_and_no_pass_is_wider_than_the_widest():
    control = controller(None, {1: 1.0, 2: 0.5, 16: 0.4, 32: 0.1})
    assert control.width(1, 32, 0) == 1
    assert control.width(2, 32, 0) == control.width(15, 32, 0) == 16
    assert control.plan(100, 0).room == 15 and control.plan(3, 0).room == 3


def test_a_draft_that_got_slower_is_noticed_and_one_that_did_not_run_says_nothing():
    control = controller()
    drafted(control, 0.9, 0.9)
    control.observe(step(1, num_drafted=2, draft_seconds=0.8))
    slower = control.draft.time(1)
    assert slower > 0.11
    control.plan(15, 0)
    control.observe(step(1))
    assert control.draft.time(1) == slower


def test_a_refused_confidence_lowers_what_is_expected_of_the_next_pass():
    control = controller(0.05, {1: 1.0, 2: 1.9, 16: 9.0})
    before = control.average.value
    assert not control.plan(15, 0).take(MODEL, 0.05)
    assert control.average.value < before


@pytest.mark.parametrize(("committed", "right"), [((7,), True), ((5,), False), ((5, 7), False)])
def test_what_was_foreseen_is_right_where_it_comes_next(committed, right):
    control, before = controller(None), match_length().predict(4)
    control.plan(15, 0).foresee(NGRAM, 4, 7)
    control.observe(step(*committed))
    assert (control.predictors[NGRAM].predict(4) > before) is right


@pytest.mark.parametrize("confidence", [0.2, 0.97, 0.0, 1.0])
def test_a_confidence_at_an_edge_is_learned_where_it_is_asked(confidence):
    buckets = model_confidence()
    before = {c: buckets.predict(c) for c in (0.19, 0.2, 0.969, 0.97)}
    expected = buckets.predict(confidence)
    for _ in range(20):
        buckets.observe(confidence, False)
    assert buckets.predict(confidence) < expected
    changed = [c for c, value in before.items() if buckets.predict(c) != value]
    assert changed == {0.2: [0.2], 0.97: [0.97], 0.0: [0.19], 1.0: [0.97]}[confidence]


def test_old_observations_fade_and_a_prior_weighs_like_its_weight():
    buckets = Buckets((), (0.5,), weight=4.0)
    buckets.observe(0.3, True)
    assert buckets.predict(0.3) == pytest.approx((0.5 * 4 + 1) / 5)
    for _ in range(300):
        buckets.observe(0.3, False)
    assert buckets.predict(0.3) == pytest.approx(0.5 * 4 / 28, rel=0.01)


def test_the_ledger_in_steps_of_any_length():
    """What may be lost shrinks with every loss, and what was gained is capped in steps of plain decoding."""
    for plain in (0.02, 3.0):
        ledger = Ledger()
        ledger.reset(0.0)
        whole = ledger.stake(plain)
        assert whole == pytest.approx(0.7 * LEAST_CREDIT * plain)
        ledger.settle(2 * plain, 1, plain)
        assert ledger.balance == pytest.approx(plain) and ledger.stake(plain) < whole
        ledger.settle(plain, 100, plain)
        assert ledger.balance == pytest.approx(-SURPLUS_STEPS * plain)
        ledger.reset(0.0)
        assert (ledger.balance, ledger.elapsed) == (0.0, 0.0) and ledger.stake(plain) == whole


def test_one_disturbed_pass_says_little_of_its_width():
    costs = CostTable({1: 1.0, 4: 2.0})
    costs.observe(4, 0, 2000.0)
    assert costs.time(4) / costs.time(1) == pytest.approx(2.0, rel=0.1)
    costs.observe(4, 0, 1e-6)
    assert costs.time(4) / costs.time(1) == pytest.approx(2.0, rel=0.1)
