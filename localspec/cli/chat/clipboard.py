"""Text for the clipboard: through a program of this machine, or through the terminal (OSC 52), also of a remote one."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
import sys

from localspec.cli.terminal import is_terminal

LARGEST = 74_994
"""Bytes that terminals take by OSC 52."""
_SECONDS = 5.0
_PROGRAMS = (
    ("", ("pbcopy",)),
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("", ("clip.exe",)),
)
"""What each needs in the environment, and how it is called."""


def copy(text: str) -> str:
    """Put the text into the clipboard; a sentence on how, or on why not."""
    if not os.environ.get("SSH_CONNECTION"):  # the programs there have the clipboard of another machine
        for needs, argv in _PROGRAMS:
            if (not needs or os.environ.get(needs)) and shutil.which(argv[0]) and _ran(argv, text):
                return f"Copied {_characters(text)} with {argv[0]}."
    data = text.encode("utf-8", "replace")
    if not is_terminal(sys.stdout) or len(data) > LARGEST:
        return f"Not copied: there is no clipboard program, and a terminal takes {LARGEST} bytes at most."
    sys.stdout.write(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07")
    sys.stdout.flush()
    return (
        f"Gave {_characters(text)} to the terminal's clipboard; some terminals have to be allowed to take it."
    )


def _ran(argv: tuple[str, ...], text: str) -> bool:
    encoding = "utf-16-le" if argv[0] == "clip.exe" else "utf-8"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            argv,
            input=text.encode(encoding, "replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=True,
        )
        return True
    return False


def _characters(text: str) -> str:
    return "1 character" if len(text) == 1 else f"{len(text)} characters"
