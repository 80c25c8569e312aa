"""Facts about the machine and the software, without which a speed says nothing."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from localspec import __version__
from localspec.engine.libraries import libraries
from localspec.errors import BackendError
from localspec.llm import LLM
from localspec.system.cores import physical_cores


def machine(llm: LLM) -> dict[str, Any]:
    """System, processor, cores, memory, what computes and how the target runs on it."""
    engine = llm.engine
    target = engine.target
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": physical_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "library": engine.library.name,
        "build": target.weights.build,
        "gpu": not engine.library.why_no_gpu(),
        "threads": target.threads,
        "gpu_layers": target.weights.gpu_layers,
    }


def versions() -> dict[str, str]:
    """Versions of localspec and of what its speed depends on."""
    found = {"localspec": __version__, "python": platform.python_version()}
    for library in libraries():
        with suppress(BackendError):  # one that is not installed computes nothing
            found[library.package] = library.version
    return {**found, "numpy": metadata.version("numpy")}


def _processor() -> str:
    """The model's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
