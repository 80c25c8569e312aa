"""llama-cpp-python: version, whether its library runs here, what it was compiled for, and its devices."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from localspec.doctor.cpu import cpu_features
from localspec.doctor.finding import Finding, note, ok, problem
from localspec.files.progress import readable
from localspec.llama.backend import TESTED, is_tested
from localspec.llama.probe import SECONDS, Probe, probe_library

TOPIC = "llama.cpp"
_TESTED = f"{TESTED[0]} up to below {TESTED[1]}"
_PIN = f"'llama-cpp-python>={TESTED[0]},<{TESTED[1]}'"
REBUILD = (
    "Compile it on this machine: "
    f"pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python {_PIN}."
)
_WINDOWS = {0xC000001D: "SIGILL", 0xC0000005: "access violation", 0xC0000409: "SIGABRT"}
"""What Windows tells a parent, under the names of elsewhere."""
_WORTH_HAVING = ("AVX", "AVX2", "FMA", "F16C", "DOTPROD", "MATMUL_INT8")
"""Features whose lack in the build costs a quantized model much of its speed."""


def check_library(seconds: float = SECONDS) -> Iterator[Finding]:
    """Probes in a child process, which is given that time."""
    probe = probe_library(seconds)
    yield _version(probe.version)
    yield _running(probe, seconds)
    if probe.usable:
        yield from _features(probe.features)
        yield from _devices(probe)


def _version(version: str | None) -> Finding:
    topic = "llama-cpp-python"
    if version is None:
        return problem(topic, "llama-cpp-python is not installed.", f"Install it: pip install {_PIN}.")
    if not is_tested(version):
        fact = f"llama-cpp-python {version} is installed; localspec is tested with {_TESTED}."
        return problem(topic, fact, f"Install a tested version: pip install {_PIN}.", version=version)
    return ok(topic, f"llama-cpp-python {version}, of the tested range ({_TESTED})", version=version)


def _running(probe: Probe, seconds: float) -> Finding:
    data: dict[str, object] = {"stage": probe.stage, "exit_code": probe.code}
    if probe.usable:
        return ok(TOPIC, "its library loads and answers, tried in a process of its own", **data)
    if probe.error is not None:
        return problem(TOPIC, probe.error[0], probe.error[1], **data)
    fact, remedy = _ending(probe, seconds)
    words = _last_words(probe.said)
    if words:
        fact = f'{fact} Its last words: "{words}".'
    return problem(TOPIC, fact, remedy, **data)


def _ending(probe: Probe, seconds: float) -> tuple[str, str]:
    """Sentence and remedy for a child that did not come to its end."""
    while_ = {"load": "while it was loaded", "ask": "when asked for its devices"}.get(
        probe.stage, "before it was loaded"
    )
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
            REBUILD,
        )
    if name == "SIGABRT":
        return f"The library gave up {while_} (SIGABRT).", REBUILD
    if name == "SIGKILL":
        return (
            f"The system killed the library {while_} (SIGKILL): most likely the memory was full.",
            "Close other programs, or give the container more memory.",
        )
    if name:
        return f"The library crashed {while_} ({name}).", REBUILD
    return f"The library ended its process {while_} (exit code {probe.code}).", REBUILD


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


def _features(built: dict[str, int]) -> Iterator[Finding]:
    """What the library was compiled for, against what the processor has."""
    topic = "processor"
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
        yield problem(topic, fact, REBUILD, **data)
    elif unused:
        fact = f"The processor has {', '.join(unused)}, and the library was compiled without: it is slow."
        yield note(topic, fact, REBUILD, **data)
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
                topic, f"{fact}, beside a GPU", 'See "GPU" in the README for a build that uses it.', **data
            )
        else:
            yield ok(topic, fact, **data)


def _gpu_here() -> bool:
    """Whether a GPU's driver is at hand, so that a build for it would be of use."""
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None
