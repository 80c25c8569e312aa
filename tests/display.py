"""A virtual display for tests that open windows: Xvfb on a free display number."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SIZE = "1600x1200x24"
MISSING = "Xvfb is missing, and tests open windows on it. On Debian and Ubuntu: apt-get install xvfb."


@contextmanager
def virtual_display() -> Iterator[str]:
    """The name of a display of its own, such as ":99", that is there until the end of the block. Where windows do
    not go by X (Windows, macOS) it is "".

    Close whatever is connected to it before: a client whose server is gone ends its process.
    """
    if sys.platform in ("win32", "darwin"):
        yield ""
        return
    program = shutil.which("Xvfb")
    assert program is not None, MISSING
    reading, writing = os.pipe()
    command = [program, "-displayfd", str(writing), "-screen", "0", SIZE, "-nolisten", "tcp"]
    server = subprocess.Popen(
        command, pass_fds=(writing,), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as told:
            number = told.readline().strip()  # once it takes connections; "" where it ended instead
        assert number, f"Xvfb ended with exit code {server.wait()}."
        yield f":{number}"
    finally:
        server.terminate()
        server.wait()
