"""A model that is a function of its prefix, and a context that checks every position."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import numpy as np

from localspec.decoding.control import Controller, FixedLength
from localspec.decoding.cross_drafter import CrossDrafter
from localspec.decoding.drafting import Drafter
from localspec.decoding.loop import Generation, run
from localspec.decoding.model_drafter import ModelDrafter
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampler import Constraint, LogitsProcessor, Sampler
from localspec.decoding.sampling import Logits
from localspec.decoding.session import Session, Span
from localspec.decoding.stats import Step
from localspec.decoding.verify import RejectionRule, Rule

LogitModel = Callable[[tuple[int, ...]], Logits]


class FakeContext:
    """Cells of one or several sequences; a decode must continue exactly where the cells end."""

    def __init__(
        self,
        model: LogitModel,
        n_vocab: int,
        n_ctx: int = 256,
        n_batch: int = 32,
        n_outputs: int = 32,
        spare: int = 0,
    ):
        self.model = model
        self.n_vocab, self.n_ctx, self.n_batch, self.n_outputs = n_vocab, n_ctx, n_batch, n_outputs
        self.spare = spare
        self.cells: dict[int, list[int]] = {}
        self.passes: list[int] = []
        self.fail_with: Exception | None = None

    def decode(self, spans: Sequence[Span]) -> list[list[Logits]]:
        width = sum(len(span.tokens) for span in spans)
        assert 1 <= width <= self.n_batch, "wider than the batch"
        assert sum(span.num_logits for span in spans) <= self.n_outputs, "more rows than outputs"
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            raise error
        self.passes.append(width)
        return [self._append(span) for span in spans]

    def _append(self, span: Span) -> list[Logits]:
        cells = self.cells.setdefault(span.sequence_id, [])
        assert span.start == len(cells), f"cells end at {len(cells)}, the span starts at {span.start}"
        assert all(0 <= token < self.n_vocab for token in span.tokens), "an id outside the vocabulary"
        cells.extend(span.tokens)
        assert len(cells) <= self.n_ctx + self.spare, "more cells than the context has"
        last = len(cells) - span.num_padding
        return [self.model(tuple(cells[:end])) for end in range(last - span.num_logits + 1, last + 1)]

    def truncate(self, sequence_id: int, length: int) -> int:
        cells = self.cells.setdefault(sequence_id, [])
        del cells[length:]
        return len(cells)

    def length(self, sequence_id: int) -> int:
        return len(self.cells.get(sequence_id, []))


class RefusingContext(FakeContext):
    """Like recurrent state: a partial removal only works as a full reset."""

    def truncate(self, sequence_id: int, length: int) -> int:
        if length < self.length(sequence_id):
            self.cells[sequence_id] = []
        return self.length(sequence_id)


def random_model(n_vocab: int, seed: int, scale: float = 2.0, memory: int = 4) -> LogitModel:
    """Logits that are fixed random numbers for every last `memory` tokens."""

    @cache
    def model(prefix: tuple[int, ...]) -> Logits:
        digest = hashlib.blake2b(repr((seed, prefix[-memory:])).encode(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        return (rng.normal(size=n_vocab) * scale).astype(np.float32)

    return model


def blended(target: LogitModel, other: LogitModel, share: float) -> LogitModel:
    """A draft that resembles the target: share 0 is the target itself."""
    return lru_cache(maxsize=None)(
        lambda prefix: ((1 - share) * target(prefix) + share * other(prefix)).astype(np.float32)
    )


def model_drafter(
    model: LogitModel, n_vocab: int, target_vocab: int | None = None, **sizes: int
) -> ModelDrafter:
    return ModelDrafter(Session(FakeContext(model, n_vocab, **sizes)), target_vocab or n_vocab)


def generate(
    target: LogitModel,
    drafter: Drafter,
    *,
    n_vocab: int,
    params: SamplingParams,
    prompt: Sequence[int] = (0, 1),
    num_draft_tokens: int = 3,
    seed: int = 0,
    make_rule: Callable[[int], Rule] = RejectionRule,
    controller: Controller | None = None,
    eog: frozenset[int] = frozenset(),
    session: Session | None = None,
    constraint: Constraint | None = None,
    processors: Sequence[LogitsProcessor] = (),
    sampler: Sampler | None = None,
    enough: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **sizes: int,
) -> tuple[list[int], list[Step]]:
    """Run the real loop to its end, or until `enough` ids are there; checks the invariant after every round.

    Returns the new ids and the steps.
    """
    session = session or Session(FakeContext(target, n_vocab, **sizes))
    generation = Generation(
        session,
        drafter,
        controller or FixedLength(num_draft_tokens),
        sampler or Sampler(params, len(prompt), eog, constraint, tuple(processors)),
        prompt,
        rule=make_rule(seed),
        check=lambda token: "stop" if token in eog else None,
        clock=clock,
    )
    steps = []
    for step in run(generation):
        steps.append(step)
        check_invariant(generation, drafter)
        if enough is not None and len(generation.sequence) - len(prompt) >= enough:
            break
    return generation.sequence[len(prompt) :], steps


def check_invariant(generation: Generation, drafter: Drafter) -> None:
    """Between rounds each session's tokens are a strict prefix of the sequence, and the cells hold just them."""
    if isinstance(drafter, CrossDrafter):
        from .crosskit import check_cells

        check_cells(drafter, generation.sequence)
    sessions = [generation.session] + ([drafter.session] if isinstance(drafter, ModelDrafter) else [])
    for session in sessions:
        context = session.context
        assert isinstance(context, FakeContext)
        assert session.tokens == context.cells.get(session.sequence_id, [])
        assert len(session.tokens) < len(generation.sequence)
        assert session.tokens == generation.sequence[: len(session.tokens)]
