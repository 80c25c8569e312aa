"""A frozen program: one file or folder that has Python inside it, made by PyInstaller or another freezer.

It has no interpreter beside it and no pip. A child process of it is the program itself, started again: what PyInstaller
was given by `localspec.freezing` calls `begin` before any of the program's own code, which so never runs in a child.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module

MARK = "LOCALSPEC_CHILD"
"""The environment variable of a process that is such a child: arguments alone, which others may choose, make none."""
_begun: list[bool] = []


def is_frozen() -> bool:
    """Whether this process is a frozen program."""
    return bool(getattr(sys, "frozen", False))


def starts_children() -> bool:
    """Whether this is a frozen program in which `begin` was called, so that `command` starts a child of it."""
    return is_frozen() and bool(_begun)


def command(entry: str, *arguments: str) -> list[str]:
    """What starts the program again to call `entry`, "package.module:name", with these texts, where `MARK` is set."""
    return [sys.executable, entry, *arguments]


def begin() -> None:
    """Called where a frozen program starts. In a child: do its work, and end the process.

    A program that only found the mark in its environment is none, and its own children find it no more.
    """
    _begun.append(True)
    if not is_frozen() or MARK not in os.environ:
        return
    if len(sys.argv) > 1 and sys.argv[1].startswith("localspec.") and ":" in sys.argv[1]:
        sys.exit(_work(*sys.argv[1:]))
    del os.environ[MARK]


def _work(entry: str, *arguments: str) -> int:
    """The exit code. Nothing is raised: a program with a window would show it to its user."""
    try:
        module, _, name = entry.partition(":")
        getattr(import_module(module), name)(*arguments)
    except Exception:
        with suppress(OSError):
            os.write(2, traceback.format_exc().encode())
        return 1
    return 0
