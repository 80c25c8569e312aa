"""CrossDrafter: a small model of another vocabulary that proposes what the target then checks.

Ids of its own never leave it. It drafts in one of two manners, and keeps to the one whose tokens stand:

- *shared*: its distribution, restricted to the tokens that stand for the same bytes in both vocabularies, on the
  target's ids (token-level intersection, Timor et al., 2502.05202). Shaped like the target's rows, and drawn from: real
  distributions, for every accept rule.
- *retold*: its likeliest text, spelled anew by the target's tokenizer, the last token left out for what may still
  follow it. Tokens that were not drawn: point masses.

Either depends on the text before it alone, and which one is used on earlier rounds alone, so the output stays exact.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from localspec.decoding.control import MODEL, Plan
from localspec.decoding.manners import SHARED, Manners
from localspec.decoding.model_drafter import Stop, largest_probability
from localspec.decoding.sampler import Sampler
from localspec.decoding.sampling import Distribution, Logits
from localspec.decoding.session import Session, common_prefix
from localspec.decoding.verify import Draft, Round
from localspec.errors import NoTokenLeft

STALL = 8
"""Passes without a whole token of the target's after which a draft ends."""


class Reading(Protocol):
    """The draft's ids for a sequence of the target. A function of the sequence alone, kept while it grows."""

    @property
    def ids(self) -> list[int]:
        """The draft's."""

    @property
    def ends(self) -> list[int]:
        """For each of them the bytes of the text up to and with it."""

    @property
    def whole(self) -> bool:
        """Whether they stand for all of the text."""

    @property
    def seen(self) -> Sequence[int]:
        """The target's ids that it follows."""

    def follow(self, sequence: Sequence[int]) -> None:
        """Read what is new in `sequence`, which begins as what was followed before."""

    def size(self, length: int) -> int:
        """Bytes of the text that the first `length` ids of the target stand for, of all where they are fewer."""

    def cut(self, length: int) -> None:
        """Keep the first `length` ids of the target."""


class Translation(Protocol):
    """Between the ids of the target and the draft's."""

    @property
    def shared(self) -> Mapping[int, int]:
        """Id of the draft -> id of the target, one to one."""

    def reading(self) -> Reading:
        """What the draft reads of a text, at first of none."""

    def is_text(self, token: int) -> bool:
        """Whether an id of the draft stands for text, and is no control token."""

    def own_bytes(self, token: int) -> bytes:
        """What an id of the draft stands for; the name of a control token."""

    def target_bytes(self, token: int) -> bytes:
        """The same for an id of the target."""

    def retold(self, text: bytes) -> tuple[int, ...]:
        """The target's ids for drafted text, up to a character that is not whole; none where it has none."""


class CrossDrafter:
    """A small model of another vocabulary.

    session:     the draft's own; between rounds its tokens stand for a beginning of the committed text.
    translation: between both vocabularies.
    vocab_size:  ids the target knows.
    eog_tokens:  the target's ends of generation.
    """

    def __init__(
        self,
        session: Session,
        translation: Translation,
        vocab_size: int,
        eog_tokens: frozenset[int] = frozenset(),
    ) -> None:
        self.session = session
        self._between, self._vocab_size, self._eog = translation, vocab_size, eog_tokens
        n_own = session.context.n_vocab
        pairs = sorted(
            (own, its) for own, its in translation.shared.items() if own < n_own and its < vocab_size
        )
        self._own = np.array([own for own, _ in pairs], dtype=np.int64)
        self._its = np.array([its for _, its in pairs], dtype=np.int64)
        self._known = np.zeros(vocab_size, dtype=np.bool_)
        self._known[self._its] = True
        self._to_own = {its: own for own, its in pairs}
        self._reading = translation.reading()
        self._manners = Manners(len(pairs) / n_own)
        self._proposed: tuple[int, tuple[int, ...]] | None = None
        self.stop: Stop | None = None

    def reads(self, sequence: Sequence[int]) -> list[int]:
        """The ids of its own that stand for `sequence`."""
        reading = self._between.reading()
        reading.follow(sequence)
        return reading.ids

    def begin(self, sequence: Sequence[int]) -> None:
        """Keep the cells this prompt shares with the last one."""
        self._reading.cut(common_prefix(self._reading.seen, sequence))
        self._reading.follow(sequence)
        if self._reading.ids:
            self.session.align(self._reading.ids)
        else:
            self.session.rollback(0)
        self._manners.reset()
        self._proposed = None
        self.stop = None

    def unread(self, sequence: Sequence[int]) -> int:
        """All but the last id of its own, whose pass gives the first draft; 0 where they do not fit."""
        pending = self._pending(sequence)
        return len(pending) - 1 if self._can_read(pending) else 0

    def prefill(self, sequence: Sequence[int]) -> None:
        """Read all but the last id of its own, whose pass gives the first draft."""
        if num_unread := self.unread(sequence):
            self.session.forward(self._pending(sequence)[:num_unread], num_logits=0)

    def propose(self, sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round) -> Draft:
        """One pass of the draft per token of its own, as long as the plan says that it pays."""
        pending = self._pending(sequence)
        stop = self._why_not(pending, len(sequence))
        self.stop = stop and (self.stop or stop)
        if not self._can_read(pending):
            return Draft()
        manner = self._manners.next()
        draw = self._shared if manner == SHARED else self._retold
        draft, num_passes = draw(pending, sequence, plan, sampler, round_)
        if num_passes:
            self._manners.used(manner, num_passes)
            self._proposed = len(sequence), draft.tokens
        return draft

    def rollback(self, length: int) -> None:
        """Forget the cells of text that was not committed.

        They hold the ids that were read of the text, and behind all of them those of drafts.
        """
        reading, held = self._reading, self.session.tokens
        size = reading.size(length)
        if self._proposed is not None:
            start, tokens = self._proposed
            stands = tokens[: max(length - start, 0)]
            size += sum(len(self._between.target_bytes(token)) for token in stands)
            if length >= start:
                self._manners.learn(len(stands))
            self._proposed = None
        kept = bisect_right(reading.ends, size, hi=min(len(held), len(reading.ends)))
        if kept == len(reading.ends):
            end = reading.ends[-1] if reading.ends else 0
            for token in held[kept:]:
                end += len(self._between.own_bytes(token))
                if end > size:
                    break
                kept += 1
        self.session.rollback(kept)
        if length < len(reading.seen):
            reading.cut(length)
            self.session.rollback(common_prefix(self.session.tokens, reading.ids))

    def _pending(self, sequence: Sequence[int]) -> list[int]:
        """What is still to be read of the draft's own spelling of the text; at least its last id, if there is any."""
        reading, session = self._reading, self.session
        reading.follow(sequence)
        if not reading.ids:
            return []
        session.rollback(min(common_prefix(session.tokens, reading.ids), len(reading.ids) - 1))
        return reading.ids[len(session.tokens) :]

    def _why_not(self, pending: Sequence[int], length: int) -> Stop | None:
        if not self._reading.whole:
            return Stop("it has no tokens for a part of the text", length)
        if pending and not self._can_read(pending):
            return Stop(f"its context holds {self.session.context.n_ctx} tokens of its own", length)
        return None

    def _can_read(self, pending: Sequence[int]) -> bool:
        """Whether there is something to read, the draft has tokens for all of it, and its context has room."""
        room = self.session.context.n_ctx - len(self.session.tokens)
        return 0 < len(pending) <= room and self._reading.whole

    def _shared(
        self, pending: Sequence[int], sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round
    ) -> tuple[Draft, int]:
        """Tokens drawn from those that both have, and how many passes they took."""
        history = list(sequence) if sampler.reads_history else []
        tokens: list[int] = []
        probs: list[Distribution] = []
        num_passes = 0
        while self._can_read(pending) and plan.pays_for_pass(MODEL, len(pending)):
            (row,) = self.session.forward(pending, sure=len(self._reading.ids))
            num_passes += 1
            try:
                draft_probs = sampler(self._on_targets_ids(row), history, self._known)
            except NoTokenLeft:
                break
            # Asked before the draw: whether a token is proposed must not depend on which one it is. What the draft
            # would rather say, and the target has no token for, lowers its confidence.
            if not plan.take(
                MODEL, largest_probability(row) * float(np.exp(row[self._own].max() - row.max()))
            ):
                break
            token = round_.draw(draft_probs, len(sequence) + len(tokens))
            tokens.append(token)
            probs.append(draft_probs)
            if token in self._eog:
                break
            pending = [self._to_own[token]]
            history.append(token)
        return Draft(tuple(tokens), tuple(probs)), num_passes

    def _on_targets_ids(self, row: Logits) -> Logits:
        """The draft's logits, shape (V of the target,); those of ids that it does not share are its least one."""
        wide = np.full(self._vocab_size, row.min(), dtype=np.float32)
        wide[self._its] = row[self._own]
        return wide

    def _retold(
        self, pending: Sequence[int], sequence: Sequence[int], plan: Plan, sampler: Sampler, round_: Round
    ) -> tuple[Draft, int]:
        """The draft's likeliest text as tokens of the target, and how many passes it took."""
        between = self._between
        tokens: list[int] = []
        text, confidence = b"", 1.0
        stalled = num_passes = 0
        while stalled < STALL and self._can_read(pending) and plan.pays_for_pass(MODEL, len(pending)):
            (row,) = self.session.forward(pending, sure=len(self._reading.ids))
            num_passes += 1
            best = int(np.argmax(row))
            confidence = min(confidence, largest_probability(row))
            goes_on = between.is_text(best)
            text += between.own_bytes(best) if goes_on else b""
            told = between.retold(text)
            # What the last token will be is known once more text follows it, or once none can.
            told = told[:-1] if goes_on else (*told, *self._end(best))
            taken = self._taken(told, [*sequence, *tokens], plan, sampler, confidence)
            tokens += told[:taken]
            if not goes_on or taken < len(told):
                break
            if told:
                text, stalled = text[sum(len(between.target_bytes(token)) for token in told) :], 0
                confidence = largest_probability(row)
            else:
                stalled += 1
            pending = [best]
        return Draft(tuple(tokens)), num_passes

    def _end(self, token: int) -> tuple[int, ...]:
        """The target's id of the control token with which the draft ends its text, if both have it."""
        its = self._between.shared.get(token, self._vocab_size)
        return (its,) if its < self._vocab_size else ()

    @staticmethod
    def _taken(
        told: Sequence[int], before: Sequence[int], plan: Plan, sampler: Sampler, confidence: float
    ) -> int:
        """How many of the tokens `told` are drafted behind `before`."""
        legal = sampler.count_legal(before, told)
        count = 0
        while count < legal and plan.take(MODEL, confidence):
            count += 1
        return count
