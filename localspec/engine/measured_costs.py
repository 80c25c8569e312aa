"""Measured costs of an engine, kept on disk: measured once for a model, its settings and this machine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.compute.library import Context, Library
from localspec.decoding.calibrate import calibrate
from localspec.decoding.estimates import CostTable
from localspec.engine.engine import Engine
from localspec.engine.libraries import library_for
from localspec.engine.options import EngineOptions, Notify
from localspec.gguf.metadata import Metadata
from localspec.store.measurements import Measurements, this_machine
from localspec.system.cores import physical_cores
from localspec.system.home import default_home
from localspec.system.load_watch import stage

FORMAT = 2
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Costs:
    """What passes of both models cost; `draft` is None without a draft model."""

    target: CostTable
    draft: CostTable | None


def measured_costs(
    engine: Engine, home: Path | None = None, *, redo: bool = False, notify: Notify = lambda sentence: None
) -> Costs:
    """Costs from disk, or measured now (seconds) and kept. `notify` is told when something is measured.

    The sessions of the engine must not be in use; their cells are overwritten.
    """
    kept = _kept(home)
    target = _costs_of(engine.target, engine, kept, True, redo, notify)
    draft = _costs_of(engine.draft, engine, kept, False, redo, notify) if engine.draft else None
    return Costs(target, draft)


def _costs_of(
    context: Context, engine: Engine, kept: Measurements, verifies: bool, redo: bool, notify: Notify
) -> CostTable:
    facts = _facts(context, engine, verifies)
    known = None if redo else _table(kept.find(facts))
    if known is not None:
        return known
    min_width = engine.session.min_width if verifies else 1
    stage(f"measuring {context.weights.path.name}", *((0.80, 0.86) if verifies else (0.86, 0.90)))
    notify(f"Measuring what a pass of {context.weights.path.name} costs here, once (some seconds).")
    log.info("measuring what passes of %s cost", context.weights.path.name)
    measured = calibrate(context, verifies=verifies, min_width=min_width)
    if measured.steady:
        kept.keep(facts, measured.table.to_dict())
    else:
        notify("The machine was busy, so this is not kept: it will be measured again at the next start.")
    return measured.table


def _facts(context: Context, engine: Engine, verifies: bool) -> dict[str, object]:
    """Everything that a cost depends on."""
    options = engine.options if verifies else engine.asked
    return {
        "file": context.weights.path.name,
        "bytes": context.weights.metadata.size_bytes,
        "format": context.weights.metadata.file_type,
        "verifies": verifies,
        "threads": context.threads,
        "gpu_layers": context.weights.gpu_layers,
        "repack": options.repack,
        "cache": [options.cache_type_k, options.cache_type_v],
        "n_ctx": context.n_ctx,
        "widths": [engine.session.min_width if verifies else 1, context.n_batch],
        "build": context.weights.build,
        "machine": this_machine(),
    }


def calibrated_files(home: Path) -> set[tuple[str, int]]:
    """Name and bytes of each model file whose costs were measured on this machine, under whatever settings."""
    found = set()
    for measurement in _kept(home):
        facts = measurement.facts
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
    """Plain decoding's speed in strict mode as a share of its usual speed here; None where that was never measured.

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
    ]
    return min(known) / costs.target.time(1) if known else None


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
        if table := _table(measurement.result):
            return table
    return None


def strict_sentence(engine: Engine, home: Path | None, notify: Notify) -> str:
    """What strict mode does to this target here, and what it costs."""
    share = strict_price(engine, measured_costs(engine, home, notify=notify), home)
    price = (
        "what it costs is not known, because the usual speed was never measured here"
        if share is None
        else f"plain decoding runs at {share:.0%} of its usual speed"
    )
    return f"Strict mode: {engine.strict_form}; {price}."


def _kept(home: Path | None) -> Measurements:
    return Measurements((home or default_home()) / "calibration", FORMAT)


def _agree(facts: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    return all(name in facts and facts[name] == value for name, value in wanted.items())


def _table(result: Mapping[str, Any] | None) -> CostTable | None:
    """The costs in a result; None for none, and for what is no table: it is measured again."""
    with suppress(ValueError, KeyError, TypeError):
        return None if result is None else CostTable.from_dict(result)
    return None
