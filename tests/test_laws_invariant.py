"""Law: between rounds the cells hold a strict prefix of the sequence, whatever went wrong before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.decoding.control import FixedLength
from localspec.decoding.drafting import NoDrafter
from localspec.decoding.loop import Generation, run
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.decoding.session import Session, Span, common_prefix
from localspec.decoding.verify import RejectionRule
from localspec.errors import DecodeCancelled

from .fakes import FakeContext, blended, check_invariant, generate, model_drafter, random_model

V = 10
TARGET = random_model(V, seed=5)
DRAFT = blended(TARGET, random_model(V, seed=6), 0.4)
GREEDY = SamplingParams(temperature=0, max_tokens=20)


def fresh(prompt):
    return generate(TARGET, NoDrafter(), n_vocab=V, params=GREEDY, prompt=prompt)[0]


def begin(session, drafter, prompt, check=lambda token: None):
    return Generation(
        session, drafter, FixedLength(3), Sampler(GREEDY), prompt, rule=RejectionRule(0), check=check
    )


def second_request_equals_a_fresh_engine(session, drafter, *first_prompts):
    for prompt in (*first_prompts, [0, 1], [0, 1, 2], [0, 1, 2, 4], [7]):
        tokens, _ = generate(TARGET, drafter, n_vocab=V, params=GREEDY, prompt=prompt, session=session)
        assert tokens == fresh(prompt)


@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
def test_a_closed_generator_leaves_a_right_engine(rounds):
    session, drafter = Session(FakeContext(TARGET, V)), model_drafter(DRAFT, V)
    steps = run(begin(session, drafter, [0, 1]))
    for _ in range(rounds):
        next(steps)
    steps.close()
    second_request_equals_a_fresh_engine(session, drafter)


@pytest.mark.parametrize("victim", ["target", "draft"])
@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("loses_cells", [False, True])
def test_a_failed_pass_heals(victim, after, loses_cells):
    session, drafter = Session(FakeContext(TARGET, V)), model_drafter(DRAFT, V)
    steps = run(begin(session, drafter, [0, 1]))
    for _ in range(after):
        next(steps)
    context = session.context if victim == "target" else drafter.session.context
    context.fail_with = DecodeCancelled("stopped", code=2)
    with pytest.raises(DecodeCancelled):
        list(steps)
    if loses_cells:  # what an aborted pass was seen to do
        context.cells.clear()
    second_request_equals_a_fresh_engine(session, drafter)


@pytest.mark.parametrize("victim", ["target", "draft"])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_half_done_pass_heals(victim, goes_on):
    """A pass that failed after writing some of its cells: they are not in `tokens`.

    goes_on: the next prompt goes on behind all of `tokens`, so that these alone say nothing of what must go.
    """
    session, drafter = Session(FakeContext(TARGET, V)), model_drafter(DRAFT, V)
    steps = run(begin(session, drafter, [0, 1]))
    for _ in range(2):
        next(steps)
    hurt = session if victim == "target" else drafter.session
    hurt.context.cells[0].extend([9, 9, 9])
    second_request_equals_a_fresh_engine(session, drafter, *[[*hurt.tokens, 4]] if goes_on else [])


def test_an_exception_between_verify_and_rollback_heals():
    session, drafter = Session(FakeContext(TARGET, V)), model_drafter(DRAFT, V)
    seen = []

    def check(token):
        seen.append(token)
        if len(seen) == 5:
            raise RuntimeError("consumer")
        return

    with pytest.raises(RuntimeError):
        list(run(begin(session, drafter, [0, 1], check)))
    second_request_equals_a_fresh_engine(session, drafter)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=12), min_size=2, max_size=4),
    st.integers(0, 5),
)
def test_any_series_of_requests_answers_like_a_fresh_engine(prompts, num_draft_tokens):
    session, drafter = Session(FakeContext(TARGET, V)), model_drafter(DRAFT, V)
    for prompt in prompts:
        tokens, _ = generate(
            TARGET, drafter, n_vocab=V, params=GREEDY, prompt=prompt, session=session,
            num_draft_tokens=num_draft_tokens,
        )  # fmt: skip
        assert tokens == fresh(prompt)


def test_a_next_turn_reuses_the_cells_of_the_last():
    session = Session(FakeContext(TARGET, V))
    tokens, _ = generate(TARGET, NoDrafter(), n_vocab=V, params=GREEDY, session=session)
    again = Generation(
        session,
        NoDrafter(),
        FixedLength(0),
        Sampler(GREEDY),
        [0, 1, *tokens, 3],
        rule=RejectionRule(0),
        check=lambda token: None,
    )
    assert again.num_cached == 2 + len(tokens) - 1
    check_invariant(again, NoDrafter())


def test_two_conversations_share_one_batch():
    """Propose and commit are separate halves: spans of several generations decode together."""
    context = FakeContext(TARGET, V)
    prompts = ([0, 1], [3, 4, 5])
    drafters = [model_drafter(DRAFT, V), model_drafter(TARGET, V)]
    running = [
        begin(Session(context, index), drafter, prompt)
        for index, (prompt, drafter) in enumerate(zip(prompts, drafters, strict=True))
    ]
    while open_ones := [one for one in running if one.finish_reason is None]:
        spans = [one.propose() for one in open_ones]
        for one, span, rows in zip(open_ones, spans, context.decode(spans), strict=True):
            one.commit(span, rows)
    for one, prompt in zip(running, prompts, strict=True):
        assert one.sequence[len(prompt) :] == fresh(prompt)


def test_the_fake_context_refuses_a_gap():
    context = FakeContext(TARGET, V)
    with pytest.raises(AssertionError):
        context.decode([Span(0, (1,), 1, 1)])


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_prefix(left, right):
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]
