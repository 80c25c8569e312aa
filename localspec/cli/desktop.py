"""`localspec app`: a conversation in a desktop window."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys

import click

from localspec.cli.completion import names_or_files
from localspec.errors import BackendError, MissingPackage
from localspec.system import packages

EXTRA = 'Install them with the extra `desktop`: pip install -e ".[desktop]"'


@click.command(name="app", short_help="Chat in a desktop window.")
@click.argument("pair", default="", shell_complete=names_or_files)
def app(pair: str) -> None:
    """Chat in a desktop window.

    PAIR, a pair of `localspec list`, org/repo:quant, or a GGUF file, is loaded in the place of the one used last. The
    window offers to choose and download one. Needs PySide6, the extra `desktop`.
    """
    _check_installed()
    _check_display()
    try:
        from localspec.desktop.app import run
    except ImportError as error:  # a system library that Qt needs
        raise BackendError(
            f"PySide6 cannot be loaded: {error}.",
            "Install that library of the system; on Debian and Ubuntu: apt-get install libegl1 libgl1 libxcb-cursor0 "
            "libxkbcommon-x11-0.",
        ) from error
    click.get_current_context().exit(run(pair))


def _check_installed() -> None:
    names = {"PySide6": "PySide6-Essentials", "markdown_it": "markdown-it-py", "pygments": "pygments"}
    missing = [package for name, package in names.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackage(
            f"The window needs {' and '.join(missing)}.",
            packages.mend(EXTRA, " ".join(missing)),
            package=missing[0],
        )


def _check_display() -> None:
    if sys.platform in ("win32", "darwin"):
        return
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")):
        raise BackendError(
            "There is no display for a window: neither DISPLAY nor WAYLAND_DISPLAY is set.",
            "Run it in a desktop session, or use `localspec chat` in the terminal.",
        )
    by_x = not os.environ.get("WAYLAND_DISPLAY") and os.environ.get("QT_QPA_PLATFORM") in (None, "", "xcb")
    if by_x and not _is_reached():  # Qt would end the process
        raise BackendError(
            f"The display {os.environ.get('DISPLAY', '')!r} (DISPLAY) cannot be reached.",
            "Run it in a desktop session, or use `localspec chat` in the terminal.",
        )


def _is_reached() -> bool:
    """Whether the X server that DISPLAY names answers; true where only Qt can say."""
    try:
        xcb = ctypes.CDLL("libxcb.so.1")
    except OSError:
        return True
    xcb.xcb_connect.restype = ctypes.c_void_p
    connection = ctypes.c_void_p(xcb.xcb_connect(None, None))
    failed = xcb.xcb_connection_has_error(connection)
    xcb.xcb_disconnect(connection)
    return not failed
