"""The joint distribution that the real decode loop gives: enumerated round by round, without a single random number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from localspec.decoding.control import FixedLength
from localspec.decoding.drafting import Drafter
from localspec.decoding.loop import Generation
from localspec.decoding.session import Session
from localspec.decoding.verify import Round, Rule

from .enumeration import Path, Tokens, outcomes
from .fake_options import PROMPT, Case, RememberingSampler, V
from .fakes import FakeContext, LogitModel, generate


class OneRound:
    """A rule whose next round is given."""

    def __init__(self, round_: Round) -> None:
        self._round = round_

    def round(self, position: int) -> Round:
        return self._round


def loop_joint(
    target: LogitModel,
    make_drafter: Callable[[], Drafter],
    case: Case,
    make_round: Callable[[Any], Round],
    *,
    num_draft_tokens: int,
    length: int,
) -> dict[Tokens, float]:
    """Probability of the first `length` tokens; an answer that ends earlier is a cell of its own.

    Between rounds the sessions hold a prefix of the sequence and nothing else counts (the invariant law), so each
    round is taken once for each sequence that it may find.
    """
    sampler = case.sampler(length + 1)
    joint: dict[Tokens, float] = defaultdict(float)
    open_ones: dict[Tokens, float] = {(): 1.0}
    while open_ones:
        answer = min(open_ones, key=len)
        chance = open_ones.pop(answer)

        def run(path: Path, answer: Tokens = answer) -> tuple[Tokens, bool]:
            return one_round(
                target, make_drafter(), case, sampler, make_round(path), answer, num_draft_tokens
            )

        for (tokens, ended), probability in outcomes(run).items():
            new = answer + tokens
            cells = joint if ended or len(new) >= length else open_ones
            cells[new[:length]] = cells.get(new[:length], 0.0) + chance * probability
    return dict(joint)


def one_round(
    target: LogitModel,
    drafter: Drafter,
    case: Case,
    sampler: RememberingSampler,
    round_: Round,
    answer: Tokens,
    num_draft_tokens: int,
) -> tuple[Tokens, bool]:
    """What the loop commits behind `answer`, and whether that ends it."""
    session = Session(FakeContext(target, V))
    generation = Generation(
        session,
        drafter,
        FixedLength(num_draft_tokens),
        sampler,
        PROMPT,
        rule=OneRound(round_),
        check=lambda token: "stop" if token in case.eog else None,
    )
    if answer:
        generation.sequence.extend(answer)
        session.forward(generation.sequence[:-1], num_logits=0)
    span = generation.propose()
    (rows,) = session.context.decode([span])
    step = generation.commit(span, rows)
    return step.tokens, step.finish_reason == "stop"


def case_joint(target: LogitModel, case: Case, length: int) -> dict[Tokens, float]:
    """Probability of every answer of up to `length` tokens under the target alone."""
    joint: dict[Tokens, float] = {}
    open_ones: dict[Tokens, float] = {(): 1.0}
    while open_ones:
        answer, chance = open_ones.popitem()
        prefix = [*PROMPT, *answer]
        probs = case.expected(target(tuple(prefix)), prefix)
        for token, probability in zip(probs.tokens, probs.probs, strict=True):
            new = (*answer, int(token))
            cells = joint if len(new) == length or int(token) in case.eog else open_ones
            cells[new] = chance * float(probability)
    return joint


def distance(left: dict[Tokens, float], right: dict[Tokens, float]) -> float:
    """The largest difference of any cell."""
    return max(abs(left.get(cell, 0.0) - right.get(cell, 0.0)) for cell in {*left, *right})


def answers(
    target: LogitModel,
    drafter: Drafter,
    case: Case,
    make_rule: Callable[[int], Rule],
    *,
    num_draft_tokens: int,
    length: int,
    runs: int,
) -> list[Tokens]:
    """The first `length` tokens of real answers, seeds 0 on."""
    sampler = case.sampler(length + 1)
    session = Session(FakeContext(target, V))
    found = []
    for seed in range(runs):
        tokens, _ = generate(
            target, drafter, n_vocab=V, params=sampler.params, sampler=sampler, prompt=PROMPT, seed=seed,
            num_draft_tokens=num_draft_tokens, make_rule=make_rule, eog=case.eog, session=session,
            enough=length,
        )  # fmt: skip
        found.append(tuple(tokens[:length]))
    return found
