"""Finds the C++ compiler that the build of llama.cpp will use, and says how to get one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REMEDIES = {
    "linux": "On Debian or Ubuntu: sudo apt install build-essential. On Fedora: sudo dnf install gcc-c++. "
    "On Arch: sudo pacman -S base-devel.",
    "darwin": "Install Apple's command line tools: xcode-select --install.",
    "win32": 'Install the Build Tools for Visual Studio with the workload "Desktop development with C++".',
}
PREBUILT = 'Or take a prebuilt llama-cpp-python: see "Prebuilt wheels" in docs/install.md.'
VISUAL_CPP = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"


def find_compiler(platform: str = sys.platform) -> str | None:
    """A C++ compiler that CMake will find, or None. `platform` is as in `sys.platform`."""
    if platform == "darwin":  # /usr/bin/c++ is there even where the tools behind it are not
        return first_line("xcode-select", "-p")
    names = [*os.environ.get("CXX", "").split()[:1], "c++", "g++", "clang++", "cl"]
    found = next(filter(None, map(shutil.which, names)), None)
    return found or (find_visual_cpp() if platform == "win32" else None)


def find_visual_cpp() -> str | None:
    """Visual Studio's folder: CMake finds it although `cl` is on the path in its own prompt only."""
    folder = Path(os.environ.get("PROGRAMFILES(X86)", "C:\\Program Files (x86)"))
    vswhere = folder / "Microsoft Visual Studio" / "Installer" / "vswhere.exe"
    return first_line(
        str(vswhere), "-products", "*", "-requires", VISUAL_CPP, "-property", "installationPath"
    )


def first_line(*argv: str) -> str | None:
    """The first line that a program prints; None if it is missing, fails or prints nothing."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
    except OSError:
        return None
    lines = done.stdout.splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def no_compiler(platform: str = sys.platform) -> str:
    remedy = REMEDIES.get(platform, "Install g++ or clang++.")
    return f"llama-cpp-python must be compiled, and no C++ compiler was found. {remedy} {PREBUILT}"
