"""Law: whatever is drafted, greedy output is the target's own, id for id."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.control import FixedLength, FixedPlan
from localspec.decoding.costs import CostTable
from localspec.decoding.drafting import Drafter, NgramDrafter, NoDrafter, PredictionDrafter
from localspec.decoding.loop import Generation, run
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.decoding.session import Session
from localspec.decoding.verify import Draft, RejectionRule

from .fakes import FakeContext, RefusingContext, blended, generate, model_drafter, random_model

V = 12
TARGET = random_model(V, seed=1)
OTHER = random_model(V, seed=2)
GREEDY = SamplingParams(temperature=0, max_tokens=40)


class StubbornDrafter(NoDrafter):
    """Always proposes the same ids."""

    def propose(self, sequence, plan, sampler, round_):
        return Draft((3,) * plan.room)


def make_drafter(kind: str) -> Drafter:
    shares = {"perfect": 0.0, "mediocre": 0.45, "useless": 1.0}
    if kind in shares:
        return model_drafter(blended(TARGET, OTHER, shares[kind]), V)
    return {"ngram": NgramDrafter(1, 3), "stubborn": StubbornDrafter(), "none": NoDrafter()}[kind]


@pytest.fixture(scope="module")
def plain() -> list[int]:
    """The target's greedy text, computed without the loop."""
    sequence = [0, 1]
    for _ in range(40):
        sequence.append(int(TARGET(tuple(sequence)).argmax()))
    return sequence[2:]


@pytest.mark.parametrize("kind", ["perfect", "mediocre", "useless", "ngram", "stubborn", "none"])
@pytest.mark.parametrize("num_draft_tokens", range(9))
def test_greedy_equals_plain(kind, num_draft_tokens, plain):
    tokens, _ = generate(
        TARGET, make_drafter(kind), n_vocab=V, params=GREEDY, num_draft_tokens=num_draft_tokens
    )
    assert tokens == plain


@pytest.mark.parametrize("kind", ["perfect", "mediocre", "predicted"])
def test_greedy_equals_plain_whatever_is_believed_and_learned_of_costs(kind, plain):
    """Costs that are wrong, assumed or measured, on a machine whose passes take anything."""
    rng, now, drafted = np.random.default_rng(0), [0.0], 0

    def clock() -> float:
        now[0] += float(rng.exponential(0.01))
        return now[0]

    def believed(step: float) -> CostTable:
        widths = (1, 2, 4, 8, 32)
        sure = dict(zip(widths, rng.choice([0.0, 0.3, 0.9], size=5).tolist(), strict=True))
        return CostTable({w: step * w**0.3 * 20 ** rng.uniform(-1, 1) for w in widths}, certainty=sure)

    for _ in range(12):
        controller = AdaptiveController(believed(0.01), believed(0.0001))
        drafter = PredictionDrafter(plain) if kind == "predicted" else make_drafter(kind)
        for _ in range(3):  # what one answer learns, the next goes by
            tokens, steps = generate(
                TARGET, drafter, n_vocab=V, params=GREEDY, controller=controller, clock=clock
            )
            assert tokens == plain
            drafted += sum(step.num_drafted for step in steps)
            controller.target.improve(believed(0.01), slopes=False, complete=False)
    assert drafted


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 7])
def test_a_perfect_draft_is_accepted_whole(num_draft_tokens):
    """A draft cache that is rewound wrongly keeps the output right and loses acceptance: only this sees it."""
    _, steps = generate(
        TARGET, make_drafter("perfect"), n_vocab=V, params=GREEDY, num_draft_tokens=num_draft_tokens
    )
    assert sum(step.num_accepted for step in steps) == sum(step.num_drafted for step in steps) > 0
    rounds = [step for step in steps if step.num_drafted == num_draft_tokens]
    assert rounds and all(len(step.tokens) == num_draft_tokens + 1 and step.bonus for step in rounds)


def test_a_perfect_draft_costs_one_pass_per_token_and_no_repeats():
    """Each drafted token is one narrow pass of the draft: nothing is evaluated twice."""
    drafter = make_drafter("perfect")
    generate(TARGET, drafter, n_vocab=V, params=GREEDY, num_draft_tokens=3)
    context = drafter.session.context
    # Prompt, then per round: the last drafted and the bonus token together, then one by one.
    assert set(context.passes) <= {1, 2, 3} and context.passes.count(3) <= 1


@pytest.mark.parametrize("kind", ["perfect", "mediocre"])
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4])
def test_the_draft_forgets_what_does_not_stand_and_no_more(kind, num_draft_tokens):
    """One cell too few is one token read again in every round: nothing but speed shows it."""
    drafter, session = make_drafter(kind), Session(FakeContext(TARGET, V))
    controller, sampler = FixedLength(num_draft_tokens), Sampler(GREEDY)
    generation = Generation(
        session, drafter, controller, sampler, [0, 1], rule=RejectionRule(0), check=lambda token: None
    )
    kept = set()
    for step in run(generation):
        if step.num_drafted and step.finish_reason is None:
            unread = 2 if step.bonus else 1  # the last drafted token was drawn and never read
            assert len(drafter.session.tokens) == len(generation.sequence) - unread
            kept.add(step.num_accepted)
    assert kept == {num_draft_tokens} if kind == "perfect" else len(kept) > 1


def test_acceptance_after_rejections_equals_a_cold_draft():
    """The mediocre draft proposes the same after any history of rejections as a fresh one would."""
    drafter = make_drafter("mediocre")
    _, steps = generate(TARGET, drafter, n_vocab=V, params=GREEDY, num_draft_tokens=4)
    sequence = [0, 1]
    for step in steps:
        if step.num_drafted:
            cold = model_drafter(blended(TARGET, OTHER, 0.45), V)
            draft = cold.propose(
                sequence, FixedPlan(step.num_drafted), Sampler(GREEDY), RejectionRule(0).round(0)
            )
            expected = 0
            while expected < len(draft.tokens) and draft.tokens[expected] == int(
                TARGET((*sequence, *draft.tokens[:expected])).argmax()
            ):
                expected += 1
            assert step.num_accepted == min(expected, len(step.tokens))
        sequence.extend(step.tokens)


@pytest.mark.parametrize("n_batch", [2, 5, 32])
def test_a_prompt_longer_than_the_batch(n_batch, plain):
    prompt = [0, 1, *plain]
    expected, _ = generate(TARGET, NoDrafter(), n_vocab=V, params=GREEDY, prompt=prompt)
    drafter = model_drafter(TARGET, V, n_batch=n_batch)
    tokens, steps = generate(TARGET, drafter, n_vocab=V, params=GREEDY, prompt=prompt, n_batch=n_batch)
    assert tokens == expected
    assert sum(step.num_prefilled for step in steps) >= len(prompt) - 1


@pytest.mark.parametrize("num_logits", [0, 1, 2])
def test_of_a_text_read_in_pieces_only_the_last_one_wants_rows(num_logits):
    """A row costs as much as the rest of its token's pass where the vocabulary is large."""

    class Noting(FakeContext):
        def decode(self, spans):
            wanted.append(spans[0].num_logits)
            return super().decode(spans)

    wanted = []
    rows = Session(Noting(TARGET, V, n_batch=4)).forward(range(10), num_logits=num_logits)
    assert wanted == [0, 0, num_logits] and len(rows) == num_logits


@pytest.mark.parametrize("n_outputs", [1, 2, 4])
def test_drafts_respect_the_rows_a_pass_may_return(n_outputs, plain):
    tokens, steps = generate(
        TARGET, make_drafter("perfect"), n_vocab=V, params=GREEDY, num_draft_tokens=8, n_outputs=n_outputs
    )
    assert tokens == plain
    assert max(step.num_drafted for step in steps) == n_outputs - 1


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 3, 5, 9])
def test_the_length_cap_is_exact_and_bounds_the_draft(max_tokens, plain):
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    tokens, steps = generate(TARGET, make_drafter("perfect"), n_vocab=V, params=params, num_draft_tokens=4)
    assert tokens == plain[:max_tokens]
    emitted = 0
    for step in steps:
        assert step.num_drafted <= max(0, max_tokens - emitted - 1)
        emitted += len(step.tokens)


@pytest.mark.parametrize("kind", ["perfect", "useless", "none"])
@pytest.mark.parametrize("n_ctx", [4, 7, 8])
def test_a_full_context_ends_the_answer(kind, n_ctx, plain):
    tokens, steps = generate(TARGET, make_drafter(kind), n_vocab=V, params=GREEDY, n_ctx=n_ctx)
    assert tokens == plain[: n_ctx - 2 + 1]  # the last token needs no cell
    assert steps[-1].finish_reason == "length"


def test_a_draft_context_smaller_than_the_target(plain):
    drafter = model_drafter(TARGET, V, n_ctx=10)
    tokens, steps = generate(TARGET, drafter, n_vocab=V, params=GREEDY, num_draft_tokens=3)
    assert tokens == plain
    assert steps[1].num_drafted == 3 and steps[-1].num_drafted == 0


@pytest.mark.parametrize("kind", ["perfect", "mediocre", "stubborn", "none"])
def test_an_end_token_in_mid_draft_cuts_everything_behind_it(kind, plain):
    end = plain[10]
    cut = plain[: plain.index(end) + 1]
    session = Session(FakeContext(TARGET, V))
    tokens, steps = generate(
        TARGET,
        make_drafter(kind),
        n_vocab=V,
        params=GREEDY,
        eog=frozenset([end]),
        num_draft_tokens=5,
        session=session,
    )
    assert tokens == cut
    assert steps[-1].finish_reason == "stop"
    assert sum(len(step.tokens) for step in steps) == len(cut)
    assert all(step.num_accepted + 1 >= len(step.tokens) for step in steps)


def test_stopping_comes_before_the_cap(plain):
    end = plain[5]
    first = plain.index(end)
    params = SamplingParams(temperature=0, max_tokens=first + 1)
    _, steps = generate(TARGET, NoDrafter(), n_vocab=V, params=params, eog=frozenset([end]))
    assert steps[-1].finish_reason == "stop"


def test_refused_rollbacks_are_honoured(plain):
    session = Session(RefusingContext(TARGET, V))
    tokens, _ = generate(TARGET, make_drafter("mediocre"), n_vocab=V, params=GREEDY, session=session)
    assert tokens == plain
