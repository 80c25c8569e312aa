"""What the compiled library can do, found out in a child process: an illegal instruction ends the child alone.

The child writes down how far it has come, so that its end can be explained whatever that end was.
"""

from __future__ import annotations

import ctypes
import json
import tempfile
from pathlib import Path
from typing import Any

from localspec.compute.probe import Device, Probe
from localspec.system.child import run_in_child


def probe_library(seconds: float) -> Probe:
    """Load the library in a child and ask it; whatever becomes of the child is in the answer."""
    with tempfile.TemporaryDirectory(prefix="localspec-probe-") as folder:
        notes = Path(folder) / "notes.json"
        ended = run_in_child("localspec.llama.probe:main", str(notes), seconds, Path(folder))
        return _read(notes, ended.code, ended.said)


def _read(notes: Path, code: int | None, said: str) -> Probe:
    try:
        known: dict[str, Any] = json.loads(notes.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    return Probe(
        stage=known.get("stage", "start"),
        version=known.get("version"),
        error=tuple(known["error"]) if known.get("error") else None,
        code=code,
        said=said,
        features=known.get("features", {}),
        backends=tuple(known.get("backends", ())),
        devices=tuple(
            Device(item["name"], item["description"], (item["memory"][0], item["memory"][1]))
            for item in known.get("devices", ())
        ),
    )


# In the child


class _Notes:
    """Facts that are on the disk as soon as they are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._facts: dict[str, object] = {}

    def add(self, **facts: object) -> None:
        self._facts.update(facts)
        unfinished = self._path.with_suffix(".part")
        unfinished.write_text(json.dumps(self._facts), encoding="utf-8")
        unfinished.replace(self._path)


def main(path: str) -> None:
    """The child: load the library as localspec does, and write down what it says of itself."""
    from importlib import metadata

    from localspec.errors import BackendError

    notes = _Notes(Path(path))
    try:
        notes.add(stage="start", version=metadata.version("llama-cpp-python"))
    except metadata.PackageNotFoundError:
        notes.add(stage="start", version=None)
    from localspec.llama.backend import library

    notes.add(stage="load")
    try:
        llama_cpp = library()
    except BackendError as error:
        notes.add(error=(error.message, error.command))
        return
    notes.add(stage="ask")
    notes.add(features=features_of(llama_cpp.llama_print_system_info()))
    backends, devices = _devices()
    notes.add(backends=backends, devices=devices, stage="done")


def features_of(system_info: bytes) -> dict[str, int]:
    """`b"CPU : AVX2 = 1 | FMA = 1 | "` -> {"AVX2": 1, "FMA": 1}; what is of another form is left out."""
    text = system_info.decode("utf-8", "replace")
    parts = (item.rpartition(":")[2].partition("=") for item in text.split("|"))
    return {
        name.strip(): int(value)
        for name, sign, value in parts
        if sign and name.strip() and value.strip().isdecimal()
    }


def _devices() -> tuple[list[str], list[dict[str, object]]]:
    """Compiled-in backends and the devices they see; nothing where this build cannot be asked."""
    from llama_cpp import _ggml

    ggml = getattr(_ggml, "libggml", None)
    try:
        return _asked(ggml)
    except AttributeError:
        return [], []


def _asked(ggml: Any) -> tuple[list[str], list[dict[str, object]]]:
    def texts(name: str) -> Any:
        function = getattr(ggml, name)
        function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_char_p
        return lambda handle: (function(handle) or b"").decode("utf-8", "replace")

    def handles(kind: str) -> list[int]:
        count, get = getattr(ggml, f"ggml_backend_{kind}_count"), getattr(ggml, f"ggml_backend_{kind}_get")
        count.restype, get.argtypes, get.restype = ctypes.c_size_t, [ctypes.c_size_t], ctypes.c_void_p
        return [get(index) for index in range(count())]

    def memory(handle: int) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        ask = ggml.ggml_backend_dev_memory
        ask.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        ask.restype = None
        ask(handle, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    name, description = texts("ggml_backend_dev_name"), texts("ggml_backend_dev_description")
    devices: list[dict[str, object]] = [
        {"name": name(handle), "description": description(handle), "memory": memory(handle)}
        for handle in handles("dev")
    ]
    return [texts("ggml_backend_reg_name")(handle) for handle in handles("reg")], devices
