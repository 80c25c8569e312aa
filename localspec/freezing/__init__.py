"""What PyInstaller takes from here, so that a program which uses localspec is frozen without further options.

PyInstaller finds this folder by the entry point `pyinstaller40` of the installed package. `hook-NAME.py` says what a
program that imports NAME needs beside it, or does not need; what is in `rthooks/` runs where the frozen program starts,
before its own code; and `pre_find_module_path/` says where a module lies.
"""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """The folders with hooks."""
    return [str(Path(__file__).parent)]
