"""Which file to draft with: the draft itself, or a copy of it in a format that this machine computes faster.

Requantizing moves how many drafted tokens are accepted, and never what comes out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from localspec.checks import StrPath
from localspec.compute.library import CancelFlag, Context, Library
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.calibrate import time_token
from localspec.decoding.costs import CostTable
from localspec.engine.engine import Engine, facts_of
from localspec.engine.libraries import library_for, preferred, reference, watched_flag
from localspec.engine.measured_costs import Costs
from localspec.engine.options import EngineOptions, Notify
from localspec.errors import LocalspecError, StoreError
from localspec.gguf.formats import bytes_in_format, elements_by_type
from localspec.gguf.heads import is_head_alone
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.store.measurements import this_machine
from localspec.store.prepared import ORIGINAL, PreparedDrafts, Source, Trial
from localspec.store.store import default_home
from localspec.system.cores import busy_share, physical_cores
from localspec.system.disk import require_room, sync
from localspec.system.load_watch import check_cancelled, stage
from localspec.system.progress import Stage

PURE = 0.9
"""A draft with this share of its weights in a format counts as being in it."""
GAIN = 0.9
"""A copy must take at most this share of the draft's time: it may lose a little acceptance."""
HOPE = 0.5
"""The share of the draft's time that a copy of the same size takes at best."""
MIN_BYTES = 8 << 20
"""A pass of a smaller draft does not cost its weights."""
MIN_CONTEXT = 256
RESERVE = 1 << 30
"""Bytes that stay free on the disk."""
UNSTEADY = 1.5
"""Where the median is so many times the least, others are using the machine: a copy that lost gets another trial."""
BUSY = 0.3
"""Share of the processors in use from which on the machine is not calm."""


def load_engine(
    target: StrPath | Metadata,
    draft: StrPath | Metadata | None,
    options: EngineOptions,
    home: Path | None,
    notify: Notify = lambda sentence: None,
    cancel: CancelFlag | None = None,
    library: Library | None = None,
) -> Engine:
    """The engine, drafting with the copy that an earlier trial chose here. Raises what `Engine` raises.

    A copy that cannot be loaded is removed with its trials, and the draft itself is used. cancel: a flag of `library`.
    """
    facts = facts_of(target)
    draft_facts = None if draft is None or options.no_draft else facts_of(draft)
    library = library or library_for(facts, draft_facts, options.library)
    is_head = draft_facts is not None and is_head_alone(draft_facts)
    copy = None if draft_facts is None or is_head else chosen_copy(draft_facts.path, options, home, library)
    if copy is None or draft_facts is None:
        return Engine(facts, draft_facts, options, home, notify, cancel, library)
    try:
        return Engine(facts, copy, options, home, notify, cancel, library)
    except LocalspecError as error:
        check_cancelled()
        engine = Engine(facts, draft_facts, options, home, notify, cancel, library)
        engine.warnings.append(f"The prepared draft was given up: {error.message}")
        with suppress(StoreError):
            forget(draft_facts.path, home)
        return engine


def improved_engine(
    engine: Engine,
    draft: StrPath | None,
    costs: Costs,
    home: Path | None,
    notify: Notify,
    *,
    when_calm: bool = False,
) -> Engine:
    """The engine with the faster copy of its draft, made and tried now (seconds, once), or the same engine.

    when_calm: another time where other programs use the processors now, for it would take long and be judged wrong.
    draft: the file the engine was asked to draft with. The engine must be idle; it is closed if another is returned.
    """
    options = engine.asked
    if draft is None or engine.draft is None or engine.draft.n_ctx < MIN_CONTEXT or engine.drafts_itself:
        return engine
    if engine.draft.weights.path != Path(draft):  # it is the copy
        return engine
    try:
        if not (_is_due(Path(draft), options, home, engine.library) and _can_pay(engine, Path(draft), costs)):
            return engine
        if when_calm and busy_share() > BUSY:
            return engine
        trial = try_draft(
            Path(draft), options, home, notify=notify, loaded=engine.draft, library=engine.library
        )
    except (LocalspecError, OSError) as error:  # a full disk or a read-only home: the draft does as it is
        check_cancelled()
        notify(f"{Path(draft).name} stays as it is: {error}")
        return engine
    if trial.fault:
        engine.warnings.append(f"{Path(draft).name} could not be prepared for this machine: {trial.fault}")
    if trial.chosen == ORIGINAL:
        return engine
    target = engine.target.weights.path
    engine.close()
    return load_engine(target, draft, options, home, notify, engine.cancel, engine.library)


def try_draft(
    draft: Path,
    options: EngineOptions,
    home: Path | None,
    *,
    notify: Notify = lambda sentence: None,
    loaded: Context | None = None,
    library: Library | None = None,
) -> Trial:
    """Make the copies, time a token of each against the draft's, keep the fastest and record it.

    loaded: an idle context of the draft, if there is one. library: whose passes count. Raises `StoreError` where
    nothing can be kept, and `ModelFileError` or `ModelLoadError` for a draft that is not usable itself.
    """
    drafts, source, library = _drafts(home), source_of(draft), library or preferred()
    formats = _useful_formats(draft, library)
    with drafts.lock(source), ExitStack() as opened:
        if formats:
            stage(Stage.PREPARE, f"preparing {draft.name}", 0.90, 0.98)
            notify(f"Preparing {draft.name} for this machine, once (some seconds).")
        contexts = {ORIGINAL: loaded or _open(draft, options, library, opened)}
        fault = ""
        try:
            for name in formats:
                copy = drafts.copy(source, name) or _make(drafts, source, draft, name, options)
                contexts[name] = _open(copy, options, library, opened)
            samples = time_token(contexts)
        except (LocalspecError, OSError) as error:
            check_cancelled()
            if isinstance(error, StoreError):
                raise
            fault = error.message if isinstance(error, LocalspecError) else str(error)
            samples = {}
        opened.close()  # before a copy that lost is deleted
        trial = _judged(samples, _facts(options, library), fault)
        drafts.keep(source, trial)
    return trial


def _judged(samples: Mapping[str, list[float]], facts: dict[str, object], fault: str) -> Trial:
    """The least of the times is the one that other processes disturbed least."""
    seconds = {name: min(values) for name, values in samples.items()}
    steady = all(statistics.median(values) <= UNSTEADY * min(values) for values in samples.values())
    chosen = fastest(seconds)
    return Trial(facts, seconds, chosen, fault, settled=steady or chosen != ORIGINAL)


def fastest(seconds: Mapping[str, float]) -> str:
    """The format to draft with: a copy only where it is clearly faster."""
    name = min(seconds, key=lambda name: seconds[name], default=ORIGINAL)
    return name if name != ORIGINAL and seconds[name] <= GAIN * seconds[ORIGINAL] else ORIGINAL


def forget(draft: Path, home: Path | None) -> int:
    """Remove what was prepared from the draft, also if the draft is gone; returns bytes freed. Raises StoreError."""
    drafts = _drafts(home)
    sources = {record.source for record in drafts.records() if record.source.is_of(draft)}
    if draft.is_file():
        sources.add(source_of(draft))
    return sum(drafts.remove(source) for source in sources)


def _drafts(home: Path | None) -> PreparedDrafts:
    return PreparedDrafts(home or default_home())


def source_of(draft: Path) -> Source:
    """What tells this file from others of its name. Raises `StoreError` where it cannot be read."""
    try:
        return Source.of(draft)
    except OSError as error:
        raise StoreError(
            f"{draft} cannot be read: {error.strerror}.", "Check the path.", path=str(draft)
        ) from error


def chosen_copy(
    draft: StrPath | None, options: EngineOptions, home: Path | None, library: Library | None = None
) -> Path | None:
    """The copy of `draft` that will be used, if one was made and won. Milliseconds; makes nothing.

    library: that will compute; by default the one that is asked first.
    """
    library = library or preferred()
    if draft is None or not _wanted(options, library):
        return None
    drafts = _drafts(home)
    try:
        source = Source.of(Path(draft))
    except (OSError, ValueError):  # loading says what is wrong with it
        return None
    trial = drafts.trial(source, _facts(options, library))
    return None if trial is None or trial.chosen == ORIGINAL else drafts.copy(source, trial.chosen)


def _wanted(options: EngineOptions, library: Library) -> bool:
    on_gpu = library.resolve_gpu_layers(options.draft_gpu_layers, "draft_gpu_layers") > 0
    return options.prepare_draft and not (options.no_draft or on_gpu or options.draft_rpc)


def _is_due(draft: Path, options: EngineOptions, home: Path | None, library: Library) -> bool:
    """Whether a copy might help and nobody has looked yet."""
    if not _wanted(options, library) or draft.stat().st_size < MIN_BYTES:
        return False
    return _drafts(home).trial(source_of(draft), _facts(options, library)) is None and bool(
        _useful_formats(draft, library)
    )


def _useful_formats(draft: Path, library: Library) -> list[str]:
    counts = elements_by_type(draft)
    total = sum(counts.values())
    return [name for name in library.draft_formats if counts.get(name.upper(), 0) < PURE * total]


def _can_pay(engine: Engine, draft: Path, costs: Costs) -> bool:
    """Whether the draft model could beat plain decoding if its copy is as fast as can be hoped."""
    if costs.draft is None:
        return False
    total = sum(elements_by_type(draft).values())
    size = min(bytes_in_format(total, name) for name in engine.library.draft_formats)
    share = HOPE * min(1.0, size / draft.stat().st_size)
    hoped = CostTable({1: share * costs.draft.time(1)})
    return AdaptiveController(costs.target, hoped, max_width=engine.target.n_outputs).can_pay(0)


def _facts(options: EngineOptions, library: Library) -> dict[str, object]:
    """What the comparison depends on."""
    return {
        "machine": this_machine(),
        "build": library.build,
        "threads": options.threads or physical_cores(),
        "repack": options.repack,
    }


def _make(
    drafts: PreparedDrafts, source: Source, draft: Path, format_name: str, options: EngineOptions
) -> Path:
    copy = drafts.path(source, format_name)
    size = bytes_in_format(sum(elements_by_type(draft).values()), format_name)
    require_room(copy.parent, size + RESERVE)
    reference().requantize(draft, copy, format_name, threads=options.threads)
    sync(copy)
    return copy


def _open(path: Path, options: EngineOptions, library: Library, opened: ExitStack) -> Context:
    weights = library.open_weights(
        read_metadata(path), gpu_layers=0, use_mmap=options.use_mmap, repack=options.repack
    )
    opened.callback(weights.close)
    context = weights.open_context(options.context(MIN_CONTEXT, 1), watched_flag(library))
    opened.callback(context.close)
    return context
