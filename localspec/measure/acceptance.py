"""Acceptance: how much of a draft each accept rule keeps, computed on rows of a real pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from localspec.decoding.control import FixedPlan
from localspec.decoding.loop import TargetRows
from localspec.decoding.model_drafter import ModelDrafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.rollback import rollback_of
from localspec.decoding.sampler import Sampler
from localspec.decoding.sampling import Distribution
from localspec.decoding.session import Session
from localspec.decoding.verify import Draft, RejectionRule
from localspec.engine.engine import Engine
from localspec.errors import InvalidRequest
from localspec.llm import LLM
from localspec.measure.kept import Kept, best, kept
from localspec.measure.prompts import Prompt
from localspec.text.prompt import render_prompt

Progress = Callable[[str, float], None]
"""Told what is recorded, and the share of the whole that is done."""


@dataclass(frozen=True)
class Drafted:
    """One place of an answer: what becomes of the tokens drafted there.

    drawn:     for a draft drawn from the draft model's own distribution.
    best:      on the same rows, the chance that the target draws the draft's likeliest token: one number
               per drafted token.
    best_kept: for a draft of likeliest tokens, each compared with the target's draw, the chance that its first i tokens
               stand.
    """

    drawn: Kept
    best: tuple[float, ...]
    best_kept: tuple[float, ...]


class Recorder:
    """Has the target answer alone, and the draft model draft at places along the answers.

    length: K, the tokens of a draft. Raises `InvalidRequest` where there is no draft model, or K is too many.
    """

    def __init__(self, llm: LLM, params: SamplingParams, length: int) -> None:
        check_length(llm.engine, length)
        self._llm, self._params, self._length = llm, params, length

    def run(
        self, prompts: Sequence[Prompt], progress: Progress = lambda label, share: None
    ) -> Iterator[tuple[str, list[Drafted]]]:
        """For each prompt: its scenario, and what was recorded along its answers (one per turn)."""
        for index, prompt in enumerate(prompts):
            progress(f"{prompt.scenario}: prompt {index + 1} of {len(prompts)}", index / len(prompts))
            yield prompt.scenario, list(self._along(prompt, index))

    def _along(self, prompt: Prompt, index: int) -> Iterator[Drafted]:
        # A seed for each prompt: random numbers belong to a seed and a place.
        params = replace(self._params, seed=((self._params.seed or 0) + index) % 2**64)
        engine = self._llm.engine
        answers: list[str] = []
        for _ in prompt.turns:
            ids = render_prompt(engine.vocab, engine.template, prompt.messages(answers))
            with closing(self._llm.stream(ids, params=params, draft_tokens=0)) as chunks:
                completion = [chunk.completion for chunk in chunks][-1]
            assert completion is not None, "the last chunk carries the completion"
            answers.append(completion.text.replace("\0", ""))  # a prompt may hold no NUL
            yield from record(engine, params, ids, completion.ids, self._length)


def check_length(engine: Engine, length: int) -> None:
    """Raise `InvalidRequest` if there is no draft model, or so many tokens cannot be checked in one pass."""
    if engine.draft is None:
        raise InvalidRequest(
            f"There is no draft model to record: {engine.no_draft_reason or 'none was given'}.",
            "Load a pair, or a target with a draft.",
            command="Name a pair, or a draft with -md/--draft.",
        )
    most = engine.most_draft_tokens
    if not 1 <= length <= most:
        raise InvalidRequest(
            f"{length} drafted tokens cannot be checked in one pass.", f"Draft from 1 to {most}."
        )


def record(
    engine: Engine, params: SamplingParams, prompt: Sequence[int], answer: Sequence[int], length: int
) -> Iterator[Drafted]:
    """Draft `length` tokens behind the true text at every (length + 1)-th place of `answer`, from its end backwards, or
    forwards where cells cannot be cut from any place on.

    params: with the seed of the drafts. A place where context or vocabulary leave nothing to draft is passed over.
    Uses the cells of both models; what the target's session holds of the text is not read again.
    """
    sequence = [*prompt, *answer]
    sampler = Sampler(params, len(prompt), engine.vocab.eog_tokens)
    checker = _Checker(engine, sampler, sequence)
    places = range(
        len(prompt) + 1, len(sequence), length + 1
    )  # behind the prompt itself nothing is ever drafted
    # Backwards, so that the cells hold the text before each place.
    for place in reversed(places) if _can_cut(engine) else places:
        room = min(length, engine.target.n_ctx - place)
        draft, rows = checker.checked(place, room, sampler)
        if draft.tokens:
            drawn, likeliest = kept(rows, draft), _chances_of_best(rows, draft)
            greedy = replace(sampler, params=replace(params, temperature=0.0))
            draft, rows = checker.checked(place, room, greedy)
            yield Drafted(drawn, likeliest, tuple(accumulate(_chances_of_best(rows, draft), mul)))


def _can_cut(engine: Engine) -> bool:
    return all(rollback_of(context).kind == "cut" for context in (engine.target, engine.draft))


class _Checker:
    """Both models with one text in their cells."""

    def __init__(self, engine: Engine, sampler: Sampler, sequence: list[int]) -> None:
        assert engine.draft is not None
        self._session, self._sampler, self._sequence = engine.session, sampler, sequence
        self._drafter = ModelDrafter(Session(engine.draft), engine.target.n_vocab, sampler.eog)
        self._drafter.begin(sequence)
        if _can_cut(engine):
            self._drafter.prefill(sequence)

    def checked(self, place: int, length: int, sampler: Sampler) -> tuple[Draft, TargetRows]:
        """A draft behind the first `place` ids, drawn as `sampler` shapes it, and the target's rows for it."""
        prefix = self._sequence[:place]
        self._drafter.rollback(place - 1)
        self._drafter.prefill(prefix)
        randomness = RejectionRule(self._sampler.params.seed or 0).round(place)
        draft = self._drafter.propose(prefix, FixedPlan(length), sampler, randomness)
        self._session.align(prefix)
        if unread := prefix[len(self._session.tokens) : -1]:
            self._session.forward(unread, num_logits=0)
        span = [prefix[-1], *draft.tokens]
        rows = self._session.forward(span, num_logits=len(span), sure=len(prefix) - 1)
        return draft, TargetRows(rows, self._sampler, prefix, draft.tokens)


def _chances_of_best(target_probs: Sequence[Distribution], draft: Draft) -> tuple[float, ...]:
    """For each drafted token, the target's probability of the token that the draft found likeliest there."""
    return tuple(
        float(target_probs[index].prob(best(draft.distribution(index)))) for index in range(len(draft.tokens))
    )
