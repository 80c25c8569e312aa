"""Start-up of the llama.cpp library: version, log, devices."""

from __future__ import annotations

import logging
import threading
from functools import cache
from importlib import metadata
from typing import Any

from localspec.errors import BackendError, InvalidRequest
from localspec.ggml.callbacks import LoadingGate, NativeLog, log_callback, silence
from localspec.llama.devices import has_gpu
from localspec.system import packages
from localspec.system.at_exit import close_before_library
from localspec.system.signals import signals_noted

PACKAGE = "llama-cpp-python"
TESTED = ("0.3.36", "0.3.37")
"""Tested range of llama-cpp-python: from the first, below the second."""
_REQUIREMENT = f"'{PACKAGE}>={TESTED[0]},<{TESTED[1]}'"

CACHE_TYPES = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2, "iq4_nl": 20,
}  # fmt: skip
"""ggml's numbers of the element types."""

ALL_LAYERS = 2**31 - 1
lines, gate = NativeLog(logging.getLogger("localspec.llama")), LoadingGate()
"""What llama.cpp says, and what ends its loads."""
_start = threading.Lock()


def library() -> Any:
    """The loaded `llama_cpp` module. Raises `BackendError` when it is missing or not of the tested shape."""
    with _start:
        return _load()


@cache
def _load() -> Any:
    _check_version()
    with signals_noted():  # what an import raises halfway is taken for a broken installation, there or here
        llama_cpp = _imported()
    _check_shape(llama_cpp)
    llama_cpp.llama_log_set(_log_callback(llama_cpp), None)
    with signals_noted():
        llama_cpp.llama_backend_init()
    close_before_library(lambda: silence(llama_cpp, llama_cpp.llama_log_callback))
    return llama_cpp


def _imported() -> Any:
    try:
        import llama_cpp
    except Exception as error:  # a missing shared library surfaces as OSError, RuntimeError or others
        raise BackendError(
            f"llama-cpp-python could not load its library: {error}.",
            packages.replace("Reinstall it", _REQUIREMENT),
        ) from error
    return llama_cpp


def version() -> str:
    """Of llama-cpp-python. Raises `BackendError` where it is not installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise BackendError(f"{PACKAGE} is not installed.", packages.install(_REQUIREMENT)) from error


def build() -> str:
    """The package with its version, which pins llama.cpp's. Raises `BackendError`."""
    return f"{PACKAGE} {version()}"


def _check_version() -> None:
    found = version()
    if not is_tested(found):
        raise BackendError(
            f"llama-cpp-python {found} is installed; localspec is tested with {TESTED[0]} up to below {TESTED[1]}.",
            packages.replace("Install a tested version", _REQUIREMENT),
            version=found,
        )


def is_tested(version: str) -> bool:
    """Whether that version of llama-cpp-python is in the tested range."""
    return _numbers(TESTED[0]) <= _numbers(version) < _numbers(TESTED[1])


def _numbers(version: str) -> tuple[int, ...]:
    digits = ("".join(c for c in part if c.isdigit()) for part in version.split("+")[0].split(".")[:3])
    return tuple(int(part or 0) for part in digits)


_CONTEXT_DEFAULTS = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "rope_freq_base": 0.0,
    "yarn_orig_ctx": 0, "type_k": 1, "type_v": 1, "embeddings": False, "swa_full": True,
}  # fmt: skip
_MODEL_DEFAULTS = {"n_gpu_layers": -1, "main_gpu": 0, "vocab_only": False, "use_extra_bufts": True}


def _check_shape(llama_cpp: Any) -> None:
    """The structs changed shape several times: a shifted field shows in known defaults."""
    context, model = llama_cpp.llama_context_default_params(), llama_cpp.llama_model_default_params()
    for params, expected in ((context, _CONTEXT_DEFAULTS), (model, _MODEL_DEFAULTS)):
        for name, value in expected.items():
            if getattr(params, name, None) != value:
                raise BackendError(
                    f"llama-cpp-python has an unknown parameter layout: {name} is {getattr(params, name, None)!r}.",
                    packages.replace("Install a tested version", _REQUIREMENT),
                )


def set_fields(params: Any, **values: object) -> Any:
    """Set struct fields; an unknown name is an error (ctypes would take it in silence)."""
    known = {field[0] for field in params._fields_}
    for name, value in values.items():
        if name not in known:
            raise BackendError(
                f"llama-cpp-python has no parameter {name!r}.", packages.replace("Reinstall it", _REQUIREMENT)
            )
        setattr(params, name, value)
    return params


_keep: list[Any] = []  # C holds these callbacks for the life of the process


def _log_callback(llama_cpp: Any) -> Any:
    _keep.append(log_callback(llama_cpp.llama_log_callback, lines, gate))
    return _keep[-1]


def supports_gpu() -> bool:
    """Whether this build can offload layers to a GPU. llama.cpp also says so of servers, whether there are any."""
    lib = library()
    return bool(lib.llama_supports_gpu_offload()) and (not lib.llama_supports_rpc() or has_gpu())


def resolve_gpu_layers(value: str | int, name: str = "gpu_layers", *, rpc: bool = False) -> int:
    """Number of layers to offload; 0 where the build cannot.

    rpc: to servers, and not to a GPU. Raises `InvalidRequest` for anything but auto, all or a number >= 0.
    """
    if isinstance(value, str) and value in ("auto", "all"):
        return ALL_LAYERS if rpc or supports_gpu() else 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= ALL_LAYERS:
        raise InvalidRequest(f"{name} is {value!r}.", "It must be auto, all or a number, 0 or more.")
    return value if rpc or supports_gpu() else 0
