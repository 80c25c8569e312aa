"""Contest: a pair, and two libraries of which either might compute it; what is known of both."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.compute.library import Library
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.costs import CostTable
from localspec.engine.draft_copy import chosen_copy
from localspec.engine.libraries import refusals_of
from localspec.engine.measured_costs import Costs, kept_costs
from localspec.engine.options import TARGET_ROWS, EngineOptions
from localspec.engine.trust import Comparison, known_comparison, known_verdict
from localspec.errors import BackendError, ModelFileError
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.store.measurements import Facts, Measurements, this_machine
from localspec.system.home import default_home

FORMAT = 1
LEAST_BYTES = 32 << 20
"""A smaller target is fast with any library: a comparison would take longer than it saves."""
ACCEPTANCE = 0.7
"""Of drafted tokens, assumed: only running a pair tells how often they stand."""
MARGIN = 0.95
"""Share of the expected time below which another library takes the place of the one that was chosen before: equal runs
differ by some percent."""


@dataclass(frozen=True)
class Contest:
    """first: the library that computes where nothing speaks for the other one."""

    first: Library
    other: Library
    target: Metadata
    draft: Metadata | None
    options: EngineOptions
    home: Path | None

    @property
    def known(self) -> Comparison | None:
        """What an earlier comparison found."""
        return known_verdict(self.target, self.options, self.other, self.home)

    @property
    def known_of_draft(self) -> Comparison | None:
        """The same for the draft, which strict mode leaves as it is."""
        if self.draft is None:
            return None
        return known_comparison(self.draft, replace(self.options, strict=False), self.other, self.home)

    @property
    def hopeless(self) -> str:
        """Why the other one cannot take the first one's place, a clause, or ""; the files are not looked into."""
        first, other, options = self.first, self.other, self.options
        if self.target.size_bytes < LEAST_BYTES:
            return f"{self.target.path.name} is too small for another library to matter"
        layers = [options.gpu_layers, *([options.draft_gpu_layers] if self.draft else [])]
        wanted = any(value not in ("auto", 0) or first.resolve_gpu_layers(value) > 0 for value in layers)
        if wanted and not other.resolve_gpu_layers("all"):
            return f"layers are for a GPU, which {other.name} does not use"
        lacking = {options.cache_type_k, options.cache_type_v} - {*other.cache_types}
        return f"{other.name} has no cache of type {' or '.join(sorted(lacking))}" if lacking else ""

    def refusals(self, *, compared: bool) -> str:
        """What the other one has against the files, a clause, or "". compared: it has computed the target before."""
        files = [model for model in (None if compared else self.target, self.draft) if model is not None]
        return " ".join(refusals_of(self.other, *files)).rstrip(".")

    def controllers(self, found: Comparison) -> dict[str, AdaptiveController] | None:
        """What goes by each one's costs, by key. They were measured for both, else they are those of the passes that
        were timed when they were compared: like is compared with like.
        """
        both = (self.first, self.other)
        costs = {
            library.key: pair_costs(self.target, self.draft, self.options, self.home, library)
            for library in both
        }
        if None in costs.values():
            costs = {library.key: self._timed(found, library) for library in both}
        controllers = {
            key: AdaptiveController(known.target, known.draft, max_width=TARGET_ROWS)
            for key, known in costs.items()
            if known is not None
        }
        return controllers if len(controllers) == len(both) else None

    def plain_share(self, controllers: Mapping[str, AdaptiveController], library: Library) -> float:
        """As `Choice.plain_share`."""
        plain = {key: controller.target.time(1) for key, controller in controllers.items()}
        return min(plain.values()) / plain[library.key]

    def _timed(self, found: Comparison, library: Library) -> Costs | None:
        """The draft was timed with one of them alone: its share of a target's token is taken to be alike with both.
        Where it was not timed at all, the sizes of the files say it.
        """
        table = found.costs(library)
        if table is None or self.draft is None:
            return None if table is None else Costs(table, None)
        share = self.draft.size_bytes / self.target.size_bytes
        known = self.known_of_draft
        for other in (self.first, self.other):
            of_target, of_draft = found.costs(other), known and known.costs(other)
            if of_target and of_draft:
                share = of_draft.time(1) / of_target.time(1)
        return Costs(table, CostTable({1: share * table.time(1)}))

    def expected(self, controllers: Mapping[str, AdaptiveController]) -> dict[str, float]:
        """Seconds per token by key, drafting included."""
        return {key: control.seconds_per_token(0, ACCEPTANCE) for key, control in controllers.items()}

    def winner(self, expected: Mapping[str, float], *, remember: bool) -> Library:
        """The one with the fewest seconds. What was chosen before stays unless the other one is clearly faster."""
        both = (self.first, self.other)
        kept = Measurements((self.home or default_home()) / "libraries", FORMAT)
        before = (kept.find(self._facts) or {}).get("chosen")
        best = min(both, key=lambda library: expected[library.key])
        at = next((library for library in both if library.key == before), best)
        winner = best if expected[best.key] <= MARGIN * expected[at.key] else at
        if remember and winner.key != before:
            kept.keep(self._facts, {"chosen": winner.key})
        return winner

    @property
    def _facts(self) -> Facts:
        """What a choice is remembered for."""
        options, draft = self.options, self.draft
        return {
            "target": [self.target.path.name, self.target.size_bytes],
            "draft": None if draft is None else [draft.path.name, draft.size_bytes],
            "builds": [self.first.build, self.other.build],
            "repack": options.repack,
            "cache": [options.cache_type_k, options.cache_type_v],
            "strict": options.strict,
            "machine": this_machine(),
        }


def pair_costs(
    target: Metadata, draft: Metadata | None, options: EngineOptions, home: Path | None, library: Library
) -> Costs | None:
    """What passes of both cost with a library, as far as it was measured here under these options; loads nothing.

    The draft is the copy that will be used. None where something was not measured.
    """
    options = _within(target, options)
    form = options.strict_for(target, library) if options.strict else options
    of_target = kept_costs(target, form, home, verifies=True, library=library)
    if of_target is None or draft is None:
        return None if of_target is None else Costs(of_target, None)
    used = _drafts(draft, options, home, library)
    of_draft = kept_costs(used, _within(used, options), home, verifies=False, library=library)
    return None if of_draft is None else Costs(of_target, of_draft)


def _within(model: Metadata, options: EngineOptions) -> EngineOptions:
    """The options with the context cut to what the model was trained for."""
    trained = model.n_ctx_train
    return replace(options, n_ctx=trained) if 0 < trained < options.n_ctx else options


def _drafts(draft: Metadata, options: EngineOptions, home: Path | None, library: Library) -> Metadata:
    """The copy that will draft in its place, or the draft itself."""
    with suppress(BackendError, ModelFileError):
        copy = chosen_copy(draft.path, options, home, library)
        return draft if copy is None else read_metadata(copy)
    return draft
