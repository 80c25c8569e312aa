"""Which library computes a pair: the one asked for, or that which is expected to take the least time here.

A choice is made where a pair is loaded, and stays until it is loaded anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.compute.library import Library
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.costs import CostTable
from localspec.engine.draft_copy import BUSY, chosen_copy
from localspec.engine.engine import Engine
from localspec.engine.libraries import (
    ANOTHER,
    AUTO,
    installed,
    libraries,
    library_for,
    refusals_of,
    usable,
)
from localspec.engine.measured_costs import Costs, kept_costs
from localspec.engine.options import TARGET_ROWS, EngineOptions, Notify
from localspec.engine.trust import Comparison, compare, forget, known_comparison
from localspec.errors import (
    BackendError,
    DecodeError,
    LocalspecError,
    MemoryShort,
    ModelFileError,
    ModelLoadError,
)
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.store.measurements import Facts, Measurements, this_machine
from localspec.system.cores import busy_share, physical_cores
from localspec.system.home import default_home
from localspec.system.load_watch import check_cancelled

FORMAT = 1
LIKELY = ("ik",)
"""Libraries that are worth comparing with the reference where a processor computes: with a 4-bit file on AVX2 a pass
over one token took 0.9 of its time, over four 0.5."""
LEAST_BYTES = 32 << 20
"""A smaller target is fast with any library: a comparison would take longer than it saves."""
ACCEPTANCE = 0.7
"""Of drafted tokens, assumed: only running a pair tells how often they stand."""
MARGIN = 0.95
"""Share of the expected time below which another library takes the place of the one that was chosen before: equal runs
differ by some percent."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """library: that computes. reason: why this one, a clause. warnings: sentences for the user.

    instead: which computes if this one turns out to be unable to load the files; None where it was asked for.
    """

    library: Library
    reason: str
    warnings: tuple[str, ...] = ()
    instead: Library | None = None

    @property
    def described(self) -> dict[str, object]:
        """For JSON."""
        return {"name": self.library.name, "reason": self.reason}

    def without(self, error: LocalspecError) -> Choice:
        """The choice after a load that failed with `error`. Raises it where there is no other library."""
        if self.instead is None or isinstance(error, MemoryShort):
            raise error
        said = (
            f"{self.library.name} could not load the files, so {self.instead.name} computes: {error.message}"
        )
        return Choice(self.instead, f"{self.library.name} could not load the files", (*self.warnings, said))


def choose(
    target: Metadata,
    draft: Metadata | None,
    options: EngineOptions,
    home: Path | None,
    notify: Notify = lambda sentence: None,
) -> Choice:
    """What shall compute; where that was never looked at, libraries are compared now (seconds, once for a file).

    Raises what `library_for` raises, and `BackendError` where the one asked for does not run here.
    """
    return _chosen(
        target, draft, options, home, lambda library: compare(target, options, library, home, notify)
    )


def known_choice(
    target: Metadata, draft: Metadata | None, options: EngineOptions, home: Path | None
) -> Choice:
    """What would compute by what is known now. Milliseconds; compares nothing. Raises what `library_for` raises."""
    return _chosen(target, draft, options, home, None)


def look_again(target: Metadata, options: EngineOptions, home: Path | None) -> None:
    """Let the next load compare libraries anew."""
    for library in libraries():
        if library.key in LIKELY and installed(library):
            forget(target, options, library, home)


def loaded_by_choice(choice: Choice, load: Callable[[Library], Engine]) -> tuple[Engine, Choice]:
    """What `load` makes of the choice, or of the library that stands in for it."""
    try:
        return load(choice.library), choice
    except (ModelLoadError, BackendError, DecodeError) as error:
        check_cancelled()
        choice = choice.without(error)
        log.info("%s", choice.reason)
        return load(choice.library), choice


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


@dataclass(frozen=True)
class _Contest:
    """Between the first library that can compute a pair and another one that may be faster."""

    first: Library
    other: Library
    target: Metadata
    draft: Metadata | None
    options: EngineOptions
    home: Path | None

    @property
    def known(self) -> Comparison | None:
        """What an earlier comparison found."""
        return known_comparison(self.target, self.options, self.other, self.home)

    @property
    def hopeless(self) -> str:
        """Why the other one cannot take the first one's place, a clause, or ""; the files are not looked into."""
        first, other, options = self.first, self.other, self.options
        if self.target.size_bytes < LEAST_BYTES:
            return f"{self.target.path.name} is too small for another library to matter"
        on_gpu = first.resolve_gpu_layers(options.gpu_layers) > 0 or (
            self.draft is not None
            and first.resolve_gpu_layers(options.draft_gpu_layers, "draft_gpu_layers") > 0
        )
        if on_gpu and not other.resolve_gpu_layers(options.gpu_layers):
            return f"it can use the GPU, and {other.name} cannot"
        lacking = {options.cache_type_k, options.cache_type_v} - {*other.cache_types}
        return f"{other.name} has no cache of type {' or '.join(sorted(lacking))}" if lacking else ""

    def refusals(self, *, compared: bool) -> str:
        """What the other one has against the files, a clause, or "". compared: it has computed the target before."""
        files = [model for model in (None if compared else self.target, self.draft) if model is not None]
        return " ".join(refusals_of(self.other, *files)).rstrip(".")

    def expected(self, found: Comparison) -> dict[str, float] | None:
        """Seconds per token by key, drafting included. From costs that were measured for both, else from the passes
        that were timed when they were compared: like is compared with like.
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
        if len(controllers) < len(both):
            return None
        return {key: control.seconds_per_token(0, ACCEPTANCE) for key, control in controllers.items()}

    def _timed(self, found: Comparison, library: Library) -> Costs | None:
        """A pass of the draft, which was not timed, costs what its size says."""
        table = found.costs(library)
        if table is None or self.draft is None:
            return None if table is None else Costs(table, None)
        share = self.draft.size_bytes / self.target.size_bytes
        return Costs(table, CostTable({1: table.time(1) * share}))

    def winner(self, expected: Mapping[str, float], *, remember: bool) -> Library:
        """What was chosen before stays unless the other one is clearly faster."""
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
            "threads": options.threads or physical_cores(),
            "repack": options.repack,
            "cache": [options.cache_type_k, options.cache_type_v],
            "strict": options.strict,
            "machine": this_machine(),
        }


def _chosen(
    target: Metadata,
    draft: Metadata | None,
    options: EngineOptions,
    home: Path | None,
    compare: Callable[[Library], Comparison] | None,
) -> Choice:
    """compare: compares a library with the reference now; None: only what is known counts."""
    first = library_for(target, draft, options.library)
    if options.library != AUTO:
        if compare is not None and (reason := usable(first, home)):
            raise BackendError(reason, ANOTHER)
        return Choice(first, "asked for")
    other = next((library for library in libraries() if library.key in LIKELY), first)
    if other is first or not installed(other):
        return Choice(first, "the only one here that can compute this")
    contest = _Contest(first, other, target, draft, options, home)
    found = None if contest.hopeless else contest.known
    if why := contest.hopeless or ("" if compare is None else contest.refusals(compared=found is not None)):
        return Choice(first, why)
    if compare is not None:
        if reason := usable(other, home):
            return Choice(
                first, f"{other.name} does not run here", (f"{other.name} is left aside: {reason}",)
            )
        if found is None or not (found.steady or busy_share() > BUSY):
            found = compare(other)
    if found is None:
        return Choice(first, f"{other.name} was not compared with it here yet")
    if not found.trusted:
        why = f"{other.name} is not trusted with {target.path.name}: {found.figures}"
        return Choice(first, why, (f"{why}; {first.name} computes.",))
    expected = contest.expected(found)
    if expected is None:
        return Choice(first, f"{other.name} was not timed here")
    chosen = contest.winner(expected, remember=compare is not None)
    than = other if chosen is first else first
    reason = (
        f"{1000 * expected[chosen.key]:.3g} ms a token are expected here, {1000 * expected[than.key]:.3g} ms with "
        f"{than.name}"
    )
    return Choice(chosen, reason, instead=first if chosen is other else None)
