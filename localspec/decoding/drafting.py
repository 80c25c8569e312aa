"""Who proposes the tokens that the target then checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from localspec.decoding.distribution import Distribution
from localspec.decoding.sampling import SamplingParams, distribution
from localspec.decoding.session import Session
from localspec.decoding.verify import Draft, Uniforms


class Drafter(Protocol):
    """Proposes what may follow a committed sequence."""

    def begin(self, sequence: Sequence[int]) -> None:
        """A new answer starts; `sequence` is its prompt."""

    def propose(
        self, sequence: Sequence[int], limit: int, params: SamplingParams, uniforms: Uniforms
    ) -> Draft:
        """Up to `limit` tokens after `sequence`; fewer, or none, where it has nothing to say."""

    def rollback(self, length: int) -> None:
        """The committed sequence keeps its first `length` ids: forget what was built on later ones."""


class NoDrafter:
    """Proposes nothing: plain decoding."""

    def begin(self, sequence: Sequence[int]) -> None:
        """Nothing to prepare."""

    def propose(
        self, sequence: Sequence[int], limit: int, params: SamplingParams, uniforms: Uniforms
    ) -> Draft:
        """An empty draft."""
        return Draft()

    def rollback(self, length: int) -> None:
        """Nothing to forget."""


class NgramDrafter:
    """Prompt lookup: continues the way the text went on after the last occurrence of its latest tokens.

    Costs no model pass. Keeps an index of every n-gram of the sequence, so a round costs the new tokens only.
    """

    def __init__(self, min_match: int = 4, max_match: int = 5) -> None:
        self._sizes = range(max_match, min_match - 1, -1)
        self._latest: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def begin(self, sequence: Sequence[int]) -> None:
        """Index the prompt."""
        self._latest.clear()
        self._indexed = 0
        self._index(sequence)

    def propose(
        self, sequence: Sequence[int], limit: int, params: SamplingParams, uniforms: Uniforms
    ) -> Draft:
        """What followed the longest match; a point mass, since nothing was drawn."""
        self._index(sequence)
        for size in self._sizes:
            end = self._latest.get(tuple(sequence[-size:]))
            if end is not None:
                return Draft(tuple(sequence[end : end + limit]))
        return Draft()

    def rollback(self, length: int) -> None:
        """Only committed ids are indexed, so there is nothing to forget."""

    def _index(self, sequence: Sequence[int]) -> None:
        # An n-gram counts once something follows it, so that the sequence's own end never matches itself.
        for end in range(max(self._indexed, 1), len(sequence)):
            for size in self._sizes:
                if size <= end:
                    self._latest[tuple(sequence[end - size : end])] = end
        self._indexed = len(sequence)


class ModelDrafter:
    """A small model that shares the target's ids: draws each token from its own distribution.

    session:     the draft's own; its tokens stay a strict prefix of the committed sequence between rounds.
    vocab_size:  ids the target knows; the draft's further ids are cut off before drawing.
    eog_tokens:  ends of generation; drafting past one would be work for nothing.
    """

    def __init__(self, session: Session, vocab_size: int, eog_tokens: frozenset[int] = frozenset()) -> None:
        self.session = session
        self._shared = min(vocab_size, session.context.n_vocab)
        self._eog = eog_tokens

    def begin(self, sequence: Sequence[int]) -> None:
        """Keep the cells this prompt shares with the last one."""
        self.session.align(sequence)

    def propose(
        self, sequence: Sequence[int], limit: int, params: SamplingParams, uniforms: Uniforms
    ) -> Draft:
        """Draws up to `limit` tokens, one pass of the draft each."""
        limit = min(limit, self.session.context.n_ctx - len(sequence) + 1)
        pending = sequence[len(self.session.tokens) :]
        if limit < 1 or max(pending) >= self.session.context.n_vocab:
            return Draft()  # no room in the draft's context, or an id it does not have
        history = list(sequence) if params.penalised else []
        tokens: list[int] = []
        probs: list[Distribution] = []
        while True:
            (row,) = self.session.forward(pending)
            draft_probs = distribution(row[: self._shared], params, history)
            token = draft_probs.sample(uniforms.random())
            tokens.append(token)
            probs.append(draft_probs)
            if len(tokens) == limit or token in self._eog:
                return Draft(tuple(tokens), tuple(probs))
            pending = [token]
            history.append(token)

    def rollback(self, length: int) -> None:
        """Forget the cells of tokens that were not committed."""
        self.session.rollback(length)


def round_uniforms(seed: int, position: int) -> np.random.Generator:
    """The random numbers of the round that starts at `position` of the sequence.

    Keyed by position instead of drawn from one stream: tokens that are cut away or rejected do not shift what
    comes later, and no number is ever used in two rounds.
    """
    key = np.array([seed, position], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
