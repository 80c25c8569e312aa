"""What the tests need of the system to open windows: a virtual display, and libraries that Qt loads."""

from __future__ import annotations

import shutil
import sys
from ctypes.util import find_library

LIBRARIES = {
    "EGL": "libegl1",
    "GL": "libgl1",
    "dbus-1": "libdbus-1-3",
    "xcb-cursor": "libxcb-cursor0",
    "xcb-icccm": "libxcb-icccm4",
    "xcb-keysyms": "libxcb-keysyms1",
    "xcb-shape": "libxcb-shape0",
    "xkbcommon-x11": "libxkbcommon-x11-0",
}
"""Library -> its package in Debian and Ubuntu."""


def no_display(platform: str = sys.platform) -> str:
    """A sentence about what is missing, and the remedy; "" where nothing is."""
    if platform != "linux":
        return ""
    missing = [] if shutil.which("Xvfb") else ["xvfb"]
    missing += [package for library, package in LIBRARIES.items() if find_library(library) is None]
    if not missing:
        return ""
    return (
        "Tests that open windows will fail: parts of the system are missing. On Debian and Ubuntu: "
        f"apt-get install {' '.join(missing)}"
    )
