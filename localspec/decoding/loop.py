"""The one decode loop: propose, verify, commit, roll back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from localspec.decoding.company import batch_of, company_of, waited
from localspec.decoding.control import Controller
from localspec.decoding.drafting import Drafter
from localspec.decoding.logprobs import TokenLogprob, token_logprob
from localspec.decoding.rollback import rollback_seconds
from localspec.decoding.sampler import Sampler
from localspec.decoding.sampling import Distribution, Logits
from localspec.decoding.session import Session, Span
from localspec.decoding.stats import Batch, Step
from localspec.decoding.verify import Draft, Rule

MOST_READ_AGAIN = 8
"""Tokens that are read again beside a draft, where a running state was brought back: more first become sure."""

StopCheck = Callable[[int], str | None]
"""Told each committed id in order; the first finish reason it returns ends the answer there."""


class TargetRows(Sequence[Distribution]):
    """The target's distributions of one round, made when read: rows behind a rejection cost nothing."""

    def __init__(
        self, rows: list[Logits], sampler: Sampler, sequence: list[int], drafted: tuple[int, ...]
    ) -> None:
        self._rows = rows
        self._sampler = sampler
        self._history = [*sequence, *drafted] if sampler.reads_history else []
        self._committed = len(sequence)
        self._made: dict[int, Distribution] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Distribution:  # type: ignore[override]
        if index not in self._made:
            # Row i follows the sequence and the first i drafted tokens, and is shaped by exactly those.
            history = self._history[: self._committed + index]
            self._made[index] = self._sampler(self._rows[index], history)
        return self._made[index]


class Generation:
    """One answer in progress.

    A round has two halves: `propose` gives the span to decode, `commit` takes its rows. Between them anyone may
    decode the span, alone or in one batch with the spans of other generations on the same context.
    """

    def __init__(
        self,
        session: Session,
        drafter: Drafter,
        controller: Controller,
        sampler: Sampler,
        prompt: Sequence[int],
        *,
        rule: Rule,
        check: StopCheck,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.session = session
        self.sequence = list(prompt)
        self.num_prompt = len(self.sequence)
        self.finish_reason: str | None = "length" if sampler.params.max_tokens == 0 else None
        self._drafter = drafter
        self._controller = controller
        self._sampler = sampler
        self._check = check
        self._rule = rule
        self._clock = clock
        self.num_cached = session.align(self.sequence)
        drafter.begin(self.sequence)
        controller.begin()

    def propose(self) -> Span:
        """First half: the span of this round, a piece of the prompt or the last id and a draft."""
        self._reading_seconds = self._read_prompt()
        self._started, self._waited = self._clock(), waited(self.session.context)
        self._controller.meet(company_of(self.session.context))
        self._round = self._rule.round(len(self.sequence))
        pending = self.sequence[len(self.session.tokens) :]
        size = self.session.context.n_batch
        self._draft = Draft()
        width = 0
        self._is_prefill = len(self.session.tokens) < self.num_prompt
        if not self._is_prefill and len(pending) <= 1 + MOST_READ_AGAIN:
            # Not with the prompt: the first token comes sooner, and the rounds of an answer (hence what a seed
            # gives) do not depend on how much of the prompt was cached.
            self._draft = self._propose_draft(len(pending))
            width = self._padded_width(len(pending) + len(self._draft.tokens))
        self._saving = rollback_seconds(self.session.context)
        self._proposed = self._clock()
        self._waited = waited(self.session.context) - self._waited
        if len(pending) > size:
            return self.session.span(pending[:size], num_logits=0)
        tokens = [*pending, *self._draft.tokens]
        sure = len(self.sequence) if self._draft.tokens else None
        return self.session.span(tokens, len(self._draft.tokens) + 1, width, sure)

    def _read_prompt(self) -> float:
        """Seconds in which the draft model read the prompt: once the first token is out, not before."""
        if len(self.sequence) != self.num_prompt + 1:
            return 0.0
        started, most = self._clock(), self._sampler.params.max_tokens
        if self._controller.prefills_draft(
            self._drafter.unread(self.sequence), None if most is None else most - 1
        ):
            self._drafter.prefill(self.sequence)
        return self._clock() - started

    def _propose_draft(self, num_pending: int) -> Draft:
        limit = self._draft_limit(num_pending)
        plan = self._controller.plan(limit, len(self.session.tokens), num_pending)
        if plan.room < 1:
            return Draft()
        return self._drafter.propose(self.sequence, plan, self._sampler, self._round)

    def _padded_width(self, width: int) -> int:
        context = self.session.context
        if self.session.can_go_back.kind != "cut":
            return width  # what padding leaves in a running state is not worth the way back
        limit = min(context.n_batch, context.n_ctx - len(self.session.tokens))
        return self._controller.width(width, limit, len(self.session.tokens))

    def _draft_limit(self, num_pending: int) -> int:
        """Drafted tokens that fit the batch, its outputs, the context and what may still be emitted, and that can be
        taken back.
        """
        context = self.session.context
        limit = min(context.n_batch, context.n_ctx - len(self.session.tokens)) - num_pending
        limit = min(limit, context.n_outputs - 1)
        if (deepest := self.session.can_go_back.limit) is not None:
            limit = min(limit, deepest)
        if (most := self._sampler.params.max_tokens) is not None:
            limit = min(limit, most - (len(self.sequence) - self.num_prompt) - 1)
        return max(limit, 0)

    def commit(self, span: Span, rows: list[Logits], batch: Batch | None = None) -> Step:
        """Second half: verify the draft against the rows, append what stands, roll both models back.

        batch: the pass that decoded the span together with others; None: it was decoded alone, between the halves.
        """
        saving = rollback_seconds(self.session.context) - self._saving
        alone = self._clock() - self._proposed - saving
        target_seconds = batch.seconds * len(span.tokens) / batch.width if batch else alone
        self.session.extend(span)
        tokens: list[int] = []
        logprobs: tuple[TokenLogprob, ...] = ()
        num_accepted = 0
        if rows:
            target_probs = TargetRows(rows, self._sampler, self.sequence, self._draft.tokens)
            verdict = self._round.verify(target_probs, self._draft)
            stand = self._draft.tokens[: verdict.num_accepted]
            tokens = self._append((*stand, verdict.next_token))
            num_accepted = min(verdict.num_accepted, len(tokens))
            logprobs = self._logprobs(rows, tokens)
            self._roll_back()
        num_pending = len(span.tokens) - len(self._draft.tokens) - span.num_padding
        step = Step(
            width=len(span.tokens),
            length=span.start,
            tokens=tuple(tokens),
            num_prefilled=num_pending if num_pending > 1 and self._is_prefill else 0,
            num_drafted=len(self._draft.tokens),
            num_accepted=num_accepted,
            bonus=bool(self._draft.tokens) and len(tokens) == len(self._draft.tokens) + 1,
            finish_reason=self.finish_reason,
            draft_seconds=self._proposed - self._started - self._waited,
            target_seconds=target_seconds,
            seconds=self._clock() - self._started,
            reading_seconds=self._reading_seconds,
            logprobs=logprobs,
            batch=batch,
            num_read_again=0 if self._is_prefill else num_pending - 1,
            rollback_seconds=rollback_seconds(self.session.context) - self._saving,
        )
        self._controller.observe(step)
        return step

    def _append(self, tokens: Sequence[int]) -> list[int]:
        """Commit ids one by one; the first that ends the answer is the last one kept."""
        committed: list[int] = []
        for token in tokens:
            self.sequence.append(token)
            committed.append(token)
            self.finish_reason = self._check(token) or self._cap()
            if self.finish_reason:
                break
        return committed

    def _logprobs(self, rows: list[Logits], tokens: list[int]) -> tuple[TokenLogprob, ...]:
        """Row i is the one that token i was drawn from or accepted by."""
        count = self._sampler.params.logprobs
        if count is None:
            return ()
        return tuple(token_logprob(row, token, count) for row, token in zip(rows, tokens, strict=False))

    def _cap(self) -> str | None:
        emitted = len(self.sequence) - self.num_prompt
        full = len(self.sequence) > self.session.context.n_ctx
        return "length" if full or emitted == self._sampler.params.max_tokens else None

    def _roll_back(self) -> None:
        # A length, never a count: the same line whether none, some or all drafted tokens stand.
        self.session.rollback(len(self.sequence) - 1)
        self._drafter.rollback(len(self.sequence) - 1)


def run(generation: Generation) -> Iterator[Step]:
    """Run one generation to its end, one Step a round."""
    while generation.finish_reason is None:
        span = generation.propose()
        rows = generation.session.decode(span)
        yield generation.commit(span, rows, batch_of(generation.session.context))
