"""What passes of an engine cost, kept on disk for a model, its settings and this machine, with how certain it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.compute.library import Context, Library
from localspec.decoding.calibrate import Calibration, calibrate
from localspec.decoding.costs import CostTable
from localspec.decoding.session import Session
from localspec.engine.assumed_costs import assumed_costs, going_on_from, with_fewer_threads
from localspec.engine.engine import Engine
from localspec.engine.libraries import installed, libraries, library_for, reference
from localspec.engine.options import EngineOptions, Notify
from localspec.engine.trust import known_comparison
from localspec.gguf.metadata import Metadata
from localspec.store.measurements import Measurements, this_machine
from localspec.system.cores import physical_cores
from localspec.system.home import default_home
from localspec.system.load_watch import stage
from localspec.system.progress import Stage

FORMAT = 2
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Costs:
    """What passes of both models cost; `draft` is None without a draft model.

    threads: that the passes have; None: as many as where nobody else uses the machine.
    """

    target: CostTable
    draft: CostTable | None
    threads: int | None = None

    @property
    def tables(self) -> tuple[CostTable, ...]:
        """Those there are."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def certain(self) -> bool:
        """Whether all were measured calmly."""
        return all(table.certain for table in self.tables)


@dataclass(frozen=True)
class Role:
    """A model with the costs of its passes. min_width: narrower ones are padded; session: whose cells it holds.

    beside_others: passes have fewer threads, because others use the machine.
    """

    context: Context
    verifies: bool
    min_width: int
    session: Session | None
    table: CostTable
    beside_others: bool = False

    def take_over(self, measured: Calibration) -> None:
        """What was measured just now. Beside others only where it is whole and steady: those who come and go else slow
        some widths and not others, and how these compare is known better from passes with more threads.
        """
        if measured.steady or not self.beside_others:
            self.table.improve(measured.table, slopes=measured.slopes, complete=measured.complete)


def roles(engine: Engine, costs: Costs) -> list[Role]:
    """The target, and the draft where there is one."""
    beside = costs.threads is not None
    found = [Role(engine.target, True, engine.session.min_width, engine.session, costs.target, beside)]
    if engine.draft is not None and costs.draft is not None:
        found.append(Role(engine.draft, False, 1, engine.sessions.get("draft"), costs.draft, beside))
    return found


def known_costs(engine: Engine, home: Path | None = None, *, redo: bool = False) -> Costs:
    """Costs from disk; where there are none, those that were timed when libraries were compared, and the rest assumed.
    Measures nothing. redo: nothing from disk.
    """
    kept = _kept(home)

    def known(context: Context, verifies: bool) -> CostTable:
        min_width = engine.session.min_width if verifies else 1
        if not redo and (table := _table(kept.find(_facts(context, engine, verifies)))):
            return table
        assumed = assumed_costs(context, min_width=min_width)
        timed = None if redo or min_width > 1 else _timed(context, engine, verifies, home)
        return assumed if timed is None else going_on_from(timed, assumed)

    return Costs(known(engine.target, True), known(engine.draft, False) if engine.draft else None)


def _timed(context: Context, engine: Engine, verifies: bool, home: Path | None) -> CostTable | None:
    """What the comparison of libraries says, which has as many threads as there are."""
    if context.weights.gpu_layers or _most_threads(engine, context) != physical_cores():
        return None
    options = engine.options if verifies else replace(engine.asked, strict=False)
    for library in libraries():
        if library is reference() or not installed(library):
            continue
        found = known_comparison(context.weights.metadata, options, library, home)
        if found is not None and (timed := found.costs(engine.library)) is not None:
            return timed
    return None


def costs_of_fewer(
    engine: Engine, costs: Costs, threads: int, home: Path | None = None, *, redo: bool = False
) -> Costs:
    """Costs of passes that have so many threads: from disk, and taken over from `costs`, those of the most, where there
    are none. redo: nothing from disk.
    """
    kept = _kept(home)

    def known(context: Context, verifies: bool, most: CostTable) -> CostTable:
        table = None if redo else _table(kept.find(_facts(context, engine, verifies, threads)))
        return table or with_fewer_threads(most, _most_threads(engine, context) / threads)

    target = known(engine.target, True, costs.target)
    draft = known(engine.draft, False, costs.draft) if engine.draft and costs.draft else None
    return Costs(target, draft, threads)


def keep_costs(engine: Engine, costs: Costs, home: Path | None = None) -> None:
    """Write down what was learned since it was last written, where nothing more certain stands there."""
    kept = _kept(home)
    for role in roles(engine, costs):
        if role.table.has_news:
            facts = _facts(role.context, engine, role.verifies, costs.threads)
            learned, there = role.table.learned(), _table(kept.find(facts))
            if learned.certain or there is None or not there.certain:
                kept.keep(facts, learned.to_dict())


def measure_costs(
    engine: Engine,
    costs: Costs,
    home: Path | None = None,
    *,
    notify: Notify = lambda sentence: None,
    skip: Callable[[], bool] = lambda: False,
) -> None:
    """Measure now (seconds) what is not certain of `costs`, and keep it. `notify` is told what is measured.

    skip: asked after each pass whether what is known by then shall do; also where passes no longer have as many threads
    as `costs` are for.
    The sessions of the engine must not be in use; their cells are overwritten.
    """
    for role in roles(engine, costs):
        name = _name(engine, role)
        if role.table.certain or skip():
            continue
        stage(Stage.MEASURE, f"measuring {name}", *((0.80, 0.86) if role.verifies else (0.86, 0.90)))
        notify(f"Measuring what a pass of {name} costs here, once (some seconds).")
        log.info("measuring what passes of %s cost", name)
        measured = calibrate(role.context, verifies=role.verifies, min_width=role.min_width, skip=skip)
        role.take_over(measured)
        keep_costs(engine, costs, home)
        if not measured.steady and not skip():
            notify(
                f"The machine was busy (equal passes differed by {measured.spread - 1:.0%}), so this is uncertain: "
                "it is kept until it can be measured better."
            )


def _name(engine: Engine, role: Role) -> str:
    name = role.context.weights.path.name
    if not engine.drafts_itself or role.verifies or engine.head.layer_inputs:
        return name
    return f"{name}'s prediction layers"


def _most_threads(engine: Engine, context: Context) -> int:
    return engine.threads.most if engine.threads else context.threads


def _facts(context: Context, engine: Engine, verifies: bool, threads: int | None = None) -> dict[str, object]:
    """Everything that a cost depends on."""
    options = engine.options if verifies else engine.asked
    return {
        "file": context.weights.path.name,
        "bytes": context.weights.metadata.size_bytes,
        "format": context.weights.metadata.file_type,
        "verifies": verifies,
        "threads": threads or _most_threads(engine, context),
        "gpu_layers": context.weights.gpu_layers,
        "repack": options.repack,
        "cache": [options.cache_type_k, options.cache_type_v],
        "n_ctx": context.n_ctx,
        "widths": [engine.session.min_width if verifies else 1, context.n_batch],
        "build": context.weights.build,
        "machine": this_machine(),
        **({"prediction layers": True} if engine.drafts_itself and not verifies else {}),
    }


def calibrated_files(home: Path) -> set[tuple[str, int]]:
    """Name and bytes of each model file whose costs were measured on this machine, under whatever settings."""
    found = set()
    for measurement in _kept(home):
        facts, table = measurement.facts, _table(measurement.result)
        if table is not None and not table.measured:  # a few passes of answers
            continue
        with suppress(KeyError, TypeError, ValueError):
            if facts["machine"] == this_machine():
                found.add((str(facts["file"]), int(facts["bytes"])))
    return found


def measured_passes(home: Path | None) -> dict[tuple[str, int], float]:
    """Seconds of a pass over one token, by name and bytes of each target that was measured on this machine.

    With the usual number of threads, wherever its layers were; the latest counts.
    """
    found = {}
    for measurement in sorted(_kept(home), key=lambda found: found.written):
        wanted = {"verifies": True, "threads": physical_cores(), "machine": this_machine()}
        table = _table(measurement.result) if _agree(measurement.facts, wanted) else None
        with suppress(KeyError, TypeError, ValueError):
            if table is not None:
                key = str(measurement.facts["file"]), int(measurement.facts["bytes"])
                found[key] = table.time(1)
    return found


def strict_price(engine: Engine, costs: Costs, home: Path | None = None) -> float | None:
    """Plain decoding's speed in strict mode as a share of its usual speed here; None where one was never measured.

    Compared with every form of the same file that was calibrated on this machine: the fastest counts.
    """
    ours = _facts(engine.target, engine, True)
    same = ("file", "bytes", "format", "verifies", "threads", "gpu_layers", "build", "machine")
    known = [
        table.time(1)
        for measurement in _kept(home)
        if measurement.facts != ours
        and _agree(measurement.facts, {key: ours[key] for key in same})
        and (table := _table(measurement.result))
        and table.measured
    ]
    return min(known) / costs.target.time(1) if known and costs.target.measured else None


def kept_costs(
    model: Metadata,
    options: EngineOptions,
    home: Path | None,
    *,
    verifies: bool,
    library: Library | None = None,
) -> CostTable | None:
    """What passes of a model cost, as far as it was measured here under these options; loads nothing.

    verifies: as a target, else as a draft. n_ctx of the options: the context it was measured with. The latest counts.
    library: that will compute it; by default the first that can.
    """
    wanted: dict[str, object] = {
        "file": model.path.name,
        "bytes": model.size_bytes,
        "format": model.file_type,
        "verifies": verifies,
        "threads": options.threads or physical_cores(),
        "repack": options.repack,
        "cache": [options.cache_type_k, options.cache_type_v],
        "n_ctx": options.n_ctx,
        "build": (library or library_for(model)).build,
        "machine": this_machine(),
    }
    found = [measurement for measurement in _kept(home) if _agree(measurement.facts, wanted)]
    for measurement in sorted(found, key=lambda found: found.written, reverse=True):
        if (table := _table(measurement.result)) and table.measured:
            return table
    return None


def strict_sentence(engine: Engine, home: Path | None) -> str:
    """What strict mode does to this target here, and what it costs."""
    share = strict_price(engine, known_costs(engine, home), home)
    price = (
        "what it costs is not known, because the speed was not measured here with it and without it"
        if share is None
        else f"plain decoding runs at {share:.0%} of its usual speed"
    )
    return f"Strict mode with {engine.library.name}: {engine.strict_form}; {price}."


def _kept(home: Path | None) -> Measurements:
    return Measurements((home or default_home()) / "calibration", FORMAT)


def _agree(facts: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    return all(name in facts and facts[name] == value for name, value in wanted.items())


def _table(result: Mapping[str, Any] | None) -> CostTable | None:
    """The costs in a result; None for none, and for what is no table: it is measured again."""
    with suppress(ValueError, KeyError, TypeError):
        return None if result is None else CostTable.from_dict(result)
    return None
