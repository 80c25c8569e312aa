"""Python itself and the packages that localspec cannot do without."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Iterator

from localspec import __version__
from localspec.doctor.finding import Finding, note, ok, problem
from localspec.system.frozen import is_frozen
from localspec.system.packages import mend

OLDEST = (3, 11)
NEEDED = (
    "click", "filelock", "huggingface_hub", "jinja2", "llguidance", "markdown_it", "numpy", "pip",
    "platformdirs", "prompt_toolkit", "psutil", "rich",
)  # fmt: skip


def check_python() -> Iterator[Finding]:
    """The version and word size of Python, and whether the packages are there."""
    yield ok("localspec", f"localspec {__version__}", version=__version__)
    yield _interpreter(sys.version_info[:3], sys.maxsize > 1 << 32)
    # No frozen program has pip, and its second source is therefore none, as the network's finding says.
    needed = [name for name in NEEDED if name != "pip" or not is_frozen()]
    missing = [name for name in needed if not _is_there(name)]
    if missing:
        fact = f"Python packages that localspec needs are missing: {', '.join(missing)}."
        remedy = mend("Install localspec again: pip install --upgrade localspec.", " ".join(missing))
        yield problem("packages", fact, remedy, missing=missing)
    else:
        yield ok("packages", "the packages that localspec needs are there")


def _interpreter(version: tuple[int, ...], wide: bool) -> Finding:
    name = f"Python {'.'.join(map(str, version))} ({platform.python_implementation()}, {platform.machine()})"
    data: dict[str, object] = {"version": ".".join(map(str, version)), "executable": sys.executable}
    if version[:2] < OLDEST:
        return problem("Python", f"{name} is too old.", "localspec needs Python 3.11 or newer.", **data)
    if not wide:
        return problem("Python", f"{name} is a 32-bit program.", "Models need a 64-bit Python.", **data)
    if platform.python_implementation() != "CPython":
        return note("Python", f"{name} is not CPython, which localspec is tested with", "", **data)
    return ok("Python", f"{name}, {platform.system()} {platform.release()}", **data)


def _is_there(name: str) -> bool:
    """Whether a package is there, without importing it: one that breaks on import says so where it is used."""
    if name in sys.modules:
        return sys.modules[name] is not None
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
