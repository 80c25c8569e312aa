"""What PyInstaller takes from here, so that a program which uses localspec is frozen without further options.

PyInstaller finds this folder by the entry point `pyinstaller40` of the installed package. A file `hook-NAME.py` says
what a program needs beside what its imports tell, once it imports NAME; files in `rthooks/` run where the frozen program
starts, before its own code; those in `pre_find_module_path/` say where a module lies.
"""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """The folders with hooks."""
    return [str(Path(__file__).parent)]
