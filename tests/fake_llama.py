"""A package `llama_cpp` for a child process, which does what it is told when it is imported."""

from __future__ import annotations

from pathlib import Path

from localspec.llama.backend import _CONTEXT_DEFAULTS, _MODEL_DEFAULTS, TESTED

SHAPE = f"""
from types import SimpleNamespace

def llama_context_default_params():
    return SimpleNamespace(**{_CONTEXT_DEFAULTS!r})

def llama_model_default_params():
    return SimpleNamespace(**{_MODEL_DEFAULTS!r})

def llama_log_callback(function):
    return function

def llama_log_set(callback, data):
    pass

def llama_backend_init():
    pass

def llama_print_system_info():
    return b"CPU : SSE3 = 1 | AVX = 1 | AVX2 = 0 | REPACK = 1 | "
"""
INFO = "def llama_print_system_info():"


def fake_llama(folder: Path, code: str = "", *, version: str = TESTED[0]) -> Path:
    """The package in `folder`, which belongs on PYTHONPATH. code: run after the definitions."""
    package, info = folder / "llama_cpp", folder / f"llama_cpp_python-{version}.dist-info"
    for made in (package, info):
        made.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(f"{SHAPE}\n{code}\n", encoding="utf-8")
    (package / "_ggml.py").write_text("libggml = None\n", encoding="utf-8")
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: {version}\n", encoding="utf-8"
    )
    return folder


def without(folder: Path, *packages: str) -> Path:
    """On PYTHONPATH this folder hides the packages: importing one fails as if it were not there."""
    for package in packages:
        (folder / f"{package}.py").write_text(
            f"raise ModuleNotFoundError(\"No module named '{package}'\", name={package!r})\n",
            encoding="utf-8",
        )
    hidden = f"""
from importlib import metadata
true = metadata.version
def version(name):
    if name.replace("-python", "").replace("-", "_") in {packages!r}:
        raise metadata.PackageNotFoundError(name)
    return true(name)
metadata.version = version
"""
    (folder / "sitecustomize.py").write_text(hidden, encoding="utf-8")
    return folder
