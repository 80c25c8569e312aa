"""Compute libraries: version, whether each runs here, what it was compiled for, and its devices."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.compute.probe import Probe
from localspec.doctor.finding import Finding, Status, note, ok, problem
from localspec.engine.libraries import libraries, reference
from localspec.engine.together import why_not_together
from localspec.system import packages
from localspec.system.cpu import cpu_features
from localspec.system.progress import readable

if TYPE_CHECKING:
    from localspec.compute.library import Library

SECONDS = 60.0
"""Given to the probe of each library."""
_WINDOWS = {0xC000001D: "SIGILL", 0xC0000005: "access violation", 0xC0000409: "SIGABRT"}
"""Exit codes of crashed processes on Windows -> the names that other systems use."""
_WORTH_HAVING = ("AVX", "AVX2", "FMA", "F16C", "DOTPROD", "MATMUL_INT8")
"""Features whose lack in the build costs a quantized model much of its speed."""


def check_library(seconds: float = SECONDS, home: Path | None = None) -> Iterator[Finding]:
    """Findings on each compute library, probed in a child process that gets `seconds`.

    One beside the reference is passed over where it is not as it should be: that is no problem, but worth knowing.
    """
    works = False
    for library in libraries():
        probe = library.probe(seconds)
        if library is reference():
            works = probe.usable
            yield from _findings(library, probe, seconds)
            continue
        if probe.version is None:
            yield _missing(library)
            continue
        for finding in _findings(library, probe, seconds):
            yield replace(finding, status=min(finding.status, Status.NOTE, key=list(Status).index))
        if works and probe.usable:
            yield _beside(library, home)


def _findings(library: Library, probe: Probe, seconds: float) -> Iterator[Finding]:
    yield _version(library, probe.version)
    yield _running(library, probe, seconds)
    if probe.usable:
        yield from _features(library, probe.features)
        if library is reference():
            yield from _devices(probe)
            yield _heads(probe)


def _missing(library: Library) -> Finding:
    """A library that localspec can do without is not installed."""
    topic, fact = library.package, f"{library.package} is not installed"
    data: dict[str, object] = {"version": None, "wheel": bool(library.offer)}
    if library.offer:
        return note(topic, f"{fact}: {library.offer}.", packages.install(library.requirement), **data)
    return ok(topic, f"{fact}, is not needed, and no wheel of it exists for this system", **data)


def _beside(library: Library, home: Path | None) -> Finding:
    """Tried again, so that what was found once is put right."""
    topic = f"{library.name} beside {reference().name}"
    if reason := why_not_together(library, home, redo=True):
        return note(topic, reason, f"It is passed over. {packages.remove(library.package)}".rstrip())
    return ok(topic, "both load in one process")


def _version(library: Library, version: str | None) -> Finding:
    topic = library.package
    if version is None:
        return problem(topic, f"{topic} is not installed.", packages.install(library.requirement))
    if not library.is_tested(version):
        fact = f"{topic} {version} is installed; localspec is tested with {library.tested}."
        remedy = packages.replace("Install a tested version", library.requirement)
        return problem(topic, fact, remedy, version=version)
    return ok(topic, f"{topic} {version}, of the tested range ({library.tested})", version=version)


def _rebuild(library: Library) -> str:
    if library is not reference():
        return f"It is passed over. {packages.remove(library.package)}".rstrip()
    options = ("--force-reinstall", "--no-deps", "--no-cache-dir", "--no-binary", library.package)
    return packages.replace("Compile it on this machine", library.requirement, *options)


def _running(library: Library, probe: Probe, seconds: float) -> Finding:
    topic = library.name
    data: dict[str, object] = {"stage": probe.stage, "exit_code": probe.code}
    if probe.usable:
        return ok(topic, "its library loads and answers, tried in a process of its own", **data)
    if probe.error is not None:
        return problem(topic, probe.error[0], probe.error[1], **data)
    fact, remedy = _ending(probe, seconds, _rebuild(library))
    words = _last_words(probe.said)
    if words:
        fact = f'{fact} Its last words: "{words}".'
    return problem(topic, fact, remedy, **data)


def _ending(probe: Probe, seconds: float, rebuild: str) -> tuple[str, str]:
    """Sentence and remedy for a child that did not finish."""
    whiles = {
        "load": "while it was loaded",
        "ask": "when asked for its devices",
        "compute": "while it computed",
    }
    while_ = whiles.get(probe.stage, "before it was loaded")
    name = _signal_name(probe.code)
    if probe.code is None:
        return (
            f"The library did not answer within {seconds:g} s {while_}.",
            "If a GPU driver hangs, restart it or hide the GPU (CUDA_VISIBLE_DEVICES=-1) and try again.",
        )
    if name == "SIGILL":
        return (
            f"The library used an instruction that this processor does not have {while_} (SIGILL): "
            "it was compiled for another kind of processor.",
            rebuild,
        )
    if name == "SIGABRT":
        return f"The library gave up {while_} (SIGABRT).", rebuild
    if name == "SIGKILL":
        return (
            f"The system killed the library {while_} (SIGKILL): most likely the memory was full.",
            "Close other programs, or give the container more memory.",
        )
    if name:
        return f"The library crashed {while_} ({name}).", rebuild
    return f"The library ended its process {while_} (exit code {probe.code}).", rebuild


def _signal_name(code: int | None) -> str:
    if code is None or code >= 0:
        return _WINDOWS.get(code or 0, "")
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][-200:] if lines else ""


def _features(library: Library, built: dict[str, int]) -> Iterator[Finding]:
    """What the library was compiled for, against what the processor has."""
    topic = "processor" if library is reference() else f"processor, {library.name}"
    cpu = cpu_features()
    compiled = sorted(name for name, value in built.items() if value)
    data: dict[str, object] = {"compiled": compiled, "cpu": None if cpu is None else sorted(cpu)}
    if cpu is None:
        fact = (
            f"the library was compiled with {', '.join(compiled)}; what the processor has cannot be read here"
        )
        yield note(topic, fact, "", **data)
        return
    lacking = [name for name in compiled if cpu.get(name) is False]
    unused = [name for name in _WORTH_HAVING if cpu.get(name) and not built.get(name)]
    if lacking:
        fact = (
            f"The library was compiled with {', '.join(lacking)}, which this processor lacks: it will crash."
        )
        yield problem(topic, fact, _rebuild(library), **data)
    elif unused:
        fact = f"The processor has {', '.join(unused)}, and the library was compiled without: it is slow."
        yield note(topic, fact, _rebuild(library), **data)
    else:
        used = [name for name in compiled if cpu.get(name)]
        yield ok(
            topic, f"the library uses what the processor has: {', '.join(used) or 'no extensions'}", **data
        )


def _devices(probe: Probe) -> Iterator[Finding]:
    topic = "devices"
    backends = [name for name in probe.backends if name != "CPU"]
    devices = [device for device in probe.devices if device.name != "CPU"]
    data: dict[str, object] = {
        "backends": list(probe.backends),
        "devices": [
            {"name": item.name, "description": item.description, "memory_bytes": item.memory[1]}
            for item in probe.devices
        ],
    }
    if not probe.backends:
        yield note(topic, "this build does not say what it can run on", "", **data)
    elif devices:
        named = ", ".join(
            f"{item.name} ({item.description}, {readable(item.memory[0])} of {readable(item.memory[1])} free)"
            for item in devices
        )
        yield ok(topic, f"{', '.join(backends)}: {named}", **data)
    elif any(name not in ("BLAS", "RPC") for name in backends):
        fact = f"{' and '.join(backends)} is compiled in, and no such device is seen: models run on the CPU."
        yield note(topic, fact, "Check the driver, and what CUDA_VISIBLE_DEVICES says.", **data)
    else:
        fact = "no GPU backend is compiled in: models run on the CPU"
        if _gpu_here():
            yield note(
                topic,
                f"{fact}, beside a GPU",
                'See "GPU" in docs/install.md for a build that uses it.',
                **data,
            )
        else:
            yield ok(topic, fact, **data)


def _heads(probe: Probe) -> Finding:
    topic = "prediction layers"
    if probe.lacks:
        fact = f"A model's own prediction layers cannot draft: {probe.lacks}."
        return note(topic, fact, "Other drafts work. Install a tested version for these.", lacks=probe.lacks)
    return ok(topic, "a model's own prediction layers can draft (--draft mtp)", lacks="")


def _gpu_here() -> bool:
    """Whether a GPU's driver is at hand, so that a build for it would be of use."""
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None
