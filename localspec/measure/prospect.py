"""Prospect: what a pair will take and should gain on this machine, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.engine.choice import Choice, known_choice
from localspec.engine.contest import pair_costs
from localspec.engine.heads import head_sentence
from localspec.engine.memory import Load, memory_estimate, pair_loads
from localspec.engine.options import EngineOptions
from localspec.gguf.metadata import Metadata
from localspec.measure.estimate import estimate, from_costs

ACCEPTANCES = (0.6, 0.7, 0.8)
"""Assumed: only running a pair tells how often its drafts stand."""


@dataclass(frozen=True)
class Memory:
    """Bytes that one model takes, as a load reckons them (`memory_estimate`).

    weights: the file. cache: the KV cache of a context of n_ctx tokens. passes: intermediate results, a guess.
    """

    n_ctx: int
    weights: int
    cache: int
    passes: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.cache + self.passes


@dataclass(frozen=True)
class Prospect:
    """draft: None without one. gain: what `estimate` gives, at assumed acceptances; None where nothing was measured.

    choice: what would compute, by what is known now. head: what becomes of prediction layers, a sentence, or "".
    """

    target: Memory
    draft: Memory | None
    gain: dict[str, Any] | None
    choice: Choice
    head: str = ""

    @property
    def total(self) -> int:
        """Bytes of both models."""
        return self.target.total + (self.draft.total if self.draft else 0)


def prospect(
    target: Metadata, draft: Metadata | None, options: EngineOptions, home: Path | None = None
) -> Prospect:
    """What running the pair under these options takes and, where its costs were measured here, should gain."""
    options = _within(target, options)
    choice = known_choice(target, draft, options, home)
    costs = pair_costs(target, draft, options, home, choice.library)
    memory = [_memory(load) for load in pair_loads(target, draft, options)]
    return Prospect(
        memory[0],
        None if draft is None else memory[1],
        None if costs is None else estimate(from_costs(costs), ACCEPTANCES),
        choice,
        head_sentence(target, draft, options, choice.library),
    )


def _within(model: Metadata, options: EngineOptions) -> EngineOptions:
    """The options with the context cut to what the model was trained for."""
    trained = model.n_ctx_train
    return replace(options, n_ctx=trained) if 0 < trained < options.n_ctx else options


def _memory(load: Load) -> Memory:
    estimate = memory_estimate([load])
    return Memory(load.options.n_ctx, estimate.weights, estimate.kv_cache, estimate.compute)
