"""Between an application and a child of it: runs the child, and ends it when the application is gone.

Run as a program of its own, of the standard library alone: what hangs, or holds the interpreter's lock, is the child.
Arguments: the folder to remove when the application is gone, the seconds that the child may take, the command.
Standard input is a pipe from the application: one byte asks for the child's end, its end says that there is no
application. Standard output gets the child's exit code; the child inherits standard error.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

_POLL = 0.2


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        if os.name == "posix":
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()


def main(folder: str, seconds: str, *command: str) -> None:
    """Run `command` and write down its exit code; end it where nobody waits for it any more."""
    parent, ends = os.getppid(), time.monotonic() + float(seconds)
    asked: list[bytes] = []
    threading.Thread(target=lambda: asked.append(os.read(0, 1)), daemon=True).start()
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=os.name == "posix",
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    while True:
        try:
            code = child.wait(_POLL)
            break
        except subprocess.TimeoutExpired:
            gone = os.getppid() != parent or asked == [b""]
            if gone or asked or time.monotonic() > ends:
                _end(child)
            if gone:
                shutil.rmtree(folder, ignore_errors=True)
                return
    os.write(1, str(code).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
