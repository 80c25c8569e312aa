"""Measured costs of an engine, kept on disk: measured once for a model, its settings and this machine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from localspec.decoding.calibrate import calibrate
from localspec.decoding.costs import CostTable
from localspec.engine import Engine, EngineOptions
from localspec.hub.store import default_home
from localspec.llama.backend import physical_cores
from localspec.llama.context import Context
from localspec.llama.metadata import Metadata
from localspec.llama.watch import stage

FORMAT = 2
log = logging.getLogger(__name__)
Notify = Callable[[str], None]


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
    folder = (home or default_home()) / "calibration"
    target = _costs_of(engine.target, engine, folder, True, redo, notify)
    draft = _costs_of(engine.draft, engine, folder, False, redo, notify) if engine.draft else None
    return Costs(target, draft)


def _costs_of(
    context: Context, engine: Engine, folder: Path, verifies: bool, redo: bool, notify: Notify
) -> CostTable:
    facts = _facts(context, engine, verifies)
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
    path = folder / f"{name}.json"
    known = None if redo else _read(path, facts)
    if known is not None:
        return known
    min_width = engine.session.min_width if verifies else 1
    stage(f"measuring {context.model.path.name}", *((0.80, 0.86) if verifies else (0.86, 0.90)))
    notify(f"Measuring what a pass of {context.model.path.name} costs here, once (some seconds).")
    log.info("measuring what passes of %s cost", context.model.path.name)
    measured = calibrate(context, verifies=verifies, min_width=min_width)
    if measured.steady:
        _write(path, {"format": FORMAT, "facts": facts, **measured.table.to_dict()})
    else:
        notify("The machine was busy, so this is not kept: it will be measured again at the next start.")
    return measured.table


def _facts(context: Context, engine: Engine, verifies: bool) -> dict[str, object]:
    """Everything that a cost depends on."""
    stat = context.model.path.stat()
    options = engine.options if verifies else engine.asked
    return {
        "file": context.model.path.name,
        "bytes": stat.st_size,
        "format": context.model.metadata.file_type,
        "verifies": verifies,
        "threads": context.threads,
        "gpu_layers": context.model.gpu_layers,
        "repack": options.repack,
        "cache": [options.cache_type_k, options.cache_type_v],
        "n_ctx": context.n_ctx,
        "widths": [engine.session.min_width if verifies else 1, context.n_batch],
        "build": metadata.version("llama-cpp-python"),
        "machine": _machine(),
    }


def _machine() -> list[object]:
    return [platform.node(), platform.machine(), platform.processor(), os.cpu_count()]


def calibrated_files(home: Path) -> set[tuple[str, int]]:
    """Name and bytes of each model file whose costs were measured on this machine, under whatever settings."""
    found = set()
    for path in (home / "calibration").glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(path.read_text(encoding="utf-8"))
            facts = data["facts"]
            if data["format"] == FORMAT and facts["machine"] == _machine():
                found.add((str(facts["file"]), int(facts["bytes"])))
    return found


def strict_price(engine: Engine, costs: Costs, home: Path | None = None) -> float | None:
    """Plain decoding's speed in strict mode as a share of its usual speed here; None where that was never measured.

    Compared with every form of the same file that was calibrated on this machine: the fastest counts.
    """
    ours = _facts(engine.target, engine, True)
    same = ("file", "bytes", "format", "verifies", "threads", "gpu_layers", "build", "machine")
    known = []
    for path in ((home or default_home()) / "calibration").glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(path.read_text(encoding="utf-8"))
            facts = data["facts"]
            if data["format"] == FORMAT and facts != ours and all(facts[key] == ours[key] for key in same):
                known.append(CostTable.from_dict(data).time(1))
    return min(known) / costs.target.time(1) if known else None


def kept_costs(
    model: Metadata, options: EngineOptions, home: Path | None, *, verifies: bool
) -> CostTable | None:
    """What passes of a model cost, as far as it was measured here under these options; loads nothing.

    verifies: as a target, else as a draft. n_ctx of the options: the context it was measured with. The latest counts.
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
        "build": metadata.version("llama-cpp-python"),
        "machine": _machine(),
    }
    found = []
    for path in ((home or default_home()) / "calibration").glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(path.read_text(encoding="utf-8"))
            facts = data["facts"]
            if data["format"] == FORMAT and all(facts[key] == value for key, value in wanted.items()):
                found.append((path.stat().st_mtime_ns, path.name, CostTable.from_dict(data)))
    return max(found, key=lambda item: item[:2])[2] if found else None


def strict_sentence(engine: Engine, home: Path | None, notify: Notify) -> str:
    """What strict mode does to this target here, and what it costs."""
    share = strict_price(engine, measured_costs(engine, home, notify=notify), home)
    price = (
        "what it costs is not known, because the usual speed was never measured here (`localspec calibrate`)"
        if share is None
        else f"plain decoding runs at {share:.0%} of its usual speed"
    )
    return f"Strict mode: {engine.strict_form}; {price}."


def _read(path: Path, facts: dict[str, object]) -> CostTable | None:
    """A cache: whatever is wrong with the file, it is measured again."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] == FORMAT and data["facts"] == facts:
            return CostTable.from_dict(data)
    return None


def _write(path: Path, data: dict[str, object]) -> None:
    """A read-only home is no reason to fail: the costs are then measured at every start."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        unfinished.write_text(json.dumps(data, indent=1), encoding="utf-8")
        unfinished.replace(path)
