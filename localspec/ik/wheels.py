"""Where compiled wheels of ik-llama-cpp-python exist: it is never compiled."""

from __future__ import annotations

import platform
import sys

SYSTEMS = frozenset({("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")})
"""`sys.platform` and `platform.machine()`."""
NEWEST_PYTHON = (3, 13)


def has_wheel() -> bool:
    """Whether there is one for this system and Python."""
    return (sys.platform, platform.machine()) in SYSTEMS and (
        sys.version_info[:2] <= NEWEST_PYTHON and sys.implementation.name == "cpython"
    )
