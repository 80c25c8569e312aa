"""Trace: which drafted tokens would stand at every position of an answer, whoever drafts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from localspec.decoding.control import FixedPlan
from localspec.decoding.drafting import NgramDrafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Sampler
from localspec.decoding.sampling import Distribution, distribution
from localspec.decoding.session import Session
from localspec.decoding.verify import RejectionRule
from localspec.engine.engine import Engine


@dataclass(frozen=True)
class Trace:
    """One answer of N tokens behind a prompt of `num_prompt`.

    model:  N flags; whether the draft model, having read the true text so far, drafts a token that stands.
    copied: N counts; how many tokens copied by the n-gram drafter stand from this position on.
    """

    num_prompt: int
    model: tuple[bool, ...]
    copied: tuple[int, ...]


def record(engine: Engine, params: SamplingParams, prompt: Sequence[int], answer: Sequence[int]) -> Trace:
    """Let both drafters propose at every position of `answer`, a text that the target gave for `params`.

    A token that stands leaves the draft where the true text would have left it, so one pass of the draft for each
    position tells every run of accepted tokens. Overwrites the cells of both models: `engine.forget` first.
    """
    sequence = [*prompt, *answer]
    start, count = len(prompt), len(answer)
    if engine.no_draft_reason or not answer:
        return Trace(start, (False,) * count, (0,) * count)
    return Trace(
        start,
        _standing(engine, params, sequence, start) if engine.draft else (False,) * count,
        copied_runs(sequence, start, engine.target.n_outputs - 1),
    )


def copied_runs(sequence: Sequence[int], start: int, limit: int) -> tuple[int, ...]:
    """From every position on, how many tokens of the n-gram drafter's proposal (at most `limit`) are the text."""
    drafter = NgramDrafter()
    drafter.begin(sequence[:start])
    unused, any_token = RejectionRule(0).round(0), Sampler(SamplingParams())
    runs = []
    for position in range(start, len(sequence)):
        draft = drafter.propose(sequence[:position], FixedPlan(limit), any_token, unused)
        truth = sequence[position : position + len(draft.tokens)]
        # Behind the text's end nothing is known.
        matches = [left == right for left, right in zip(draft.tokens, truth, strict=False)]
        runs.append(matches.index(False) if False in matches else len(matches))
    return tuple(runs)


def _standing(engine: Engine, params: SamplingParams, sequence: list[int], start: int) -> tuple[bool, ...]:
    """Drawn from what the rejection rule does: of the tokens that equal x, a share min(1, q(x) / p(x)) was accepted."""
    assert engine.draft is not None
    if engine.drafts_itself:  # from what the target computed at each position
        read(Session(engine.target), sequence[:-1])
    truth: Iterator[float] = repeat(1.0)
    if not params.greedy:
        truth = chances(Session(engine.target), params, sequence, start)
    if engine.crosses_vocabularies:
        drafted = _chances_across(engine, params, sequence, start)
    else:
        drafted = chances(Session(engine.draft), params, sequence, start, engine.target.n_vocab)
    uniforms = np.random.default_rng(0).random(len(sequence) - start)
    flags = [bool(u * p < q) for u, p, q in zip(uniforms, truth, drafted, strict=False)]
    return tuple(flags + [False] * (len(sequence) - start - len(flags)))


def read(session: Session, sequence: Sequence[int]) -> None:
    """Let the cells hold `sequence`, as far as they reach."""
    session.align([*sequence, 0])
    if unread := sequence[len(session.tokens) : session.context.n_ctx]:
        session.forward(unread, num_logits=0)


def _chances_across(
    engine: Engine, params: SamplingParams, sequence: list[int], start: int
) -> Iterator[float]:
    """As `chances`, of a draft with a vocabulary of its own, whose drafts one asks for: of one token each."""
    assert engine.draft is not None
    drafter, sampler = (
        engine.model_drafter(Session(engine.draft)),
        Sampler(params, start, engine.vocab.eog_tokens),
    )
    drafter.begin(sequence[:start])
    for position in range(start, len(sequence)):
        round_ = RejectionRule(0).round(position)
        draft = drafter.propose(sequence[:position], FixedPlan(1), sampler, round_)
        drafter.rollback(position)
        yield float(draft.distribution(0).prob(sequence[position])) if draft.tokens else 0.0


def chances(
    session: Session, params: SamplingParams, sequence: list[int], start: int, vocab_size: int | None = None
) -> Iterator[float]:
    """The probability that the model gives each token from `start` on; ends early where its context does.

    vocab_size: ids beyond it are cut off first, as a draft's are.
    """
    context = session.context
    session.align(sequence)
    end = min(len(sequence), context.n_ctx + 1)
    unreadable = (i for i, token in enumerate(sequence[: end - 1]) if token >= context.n_vocab)
    end = min(end, next(unreadable, end) + 1)
    if start >= end:
        return
    if start > 1:
        session.forward(sequence[: start - 1], num_logits=0)
    for position in range(start, end, context.n_outputs):
        tokens = sequence[position - 1 : min(position + context.n_outputs, end) - 1]
        for offset, row in enumerate(session.forward(tokens, num_logits=len(tokens))):
            index = position + offset
            history = sequence[:index] if params.penalised else []
            probs: Distribution = distribution(row[:vocab_size], params, history)
            yield float(probs.prob(sequence[index]))
