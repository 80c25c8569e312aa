"""Work that may end its process, done in a child: a signal, an abort or a hang there is a fact here."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.spawn import is_forking
from pathlib import Path
from typing import NoReturn

from localspec.system import frozen

_READ, _KEPT = 1 << 18, 4000
"""Bytes of a child's last words that are looked at, and characters that are kept."""
_ASSERTION = re.compile(r"^\S+\.(?:c|cc|cpp|cu|h|hpp|m):\d+: .+$", re.MULTILINE)
"""What a library says where it ends its process. Behind that it prints its stack, by a debugger if there is one."""
_ROOT = Path(__file__).resolve().parents[2]
_CHILD = (
    "import sys; sys.path.append(sys.argv[1]); from localspec.system.child import enter; enter(*sys.argv[2:])"
)
_WATCH = Path(__file__).with_name("child_watch.py")
_WATCHES, _ENTERS = "localspec.system.child_watch:main", "localspec.system.child:enter"
"""What a frozen program does in their places."""
_POLL = 0.05
_GRACE = 60.0
"""How much longer a child may live by its own watch: this process ends it first where it can."""


@dataclass(frozen=True)
class Ended:
    """How a child ended. code: exit code, negative for a signal, None where the time was up. said: its last words."""

    code: int | None
    said: str

    @property
    def how(self) -> str:
        """In words, as the end of "It ..."."""
        if self.code is None:
            return "did not end in time"
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        why = {"SIGKILL": ", as a system short of memory ends one", "SIGABRT": " (a failed assertion)"}
        return f"was ended by {name}{why.get(name, '')}"


def run_in_child(
    entry: str, argument: str, seconds: float, folder: Path, check: Callable[[], None] = lambda: None
) -> Ended:
    """Call the function `entry`, "package.module:name", with `argument` in a process of its own.

    folder: a temporary one of the caller; where this process ends before the child, however it ends, the child ends
    too and the folder is removed. check: called all the while; what it raises ends the child. In a frozen program the
    child is the program itself (`system.frozen`). One that was frozen without `localspec.freezing` lets Python's
    multiprocessing start it, for which the program must call `multiprocessing.freeze_support()` first of all: if it
    does not, it is found to run again where a child was meant, and ended.
    """
    if _is_spawning() and is_forking(sys.argv):
        _end_stray()
    said = folder / "said"
    said.touch()
    kind = _Spawned if _is_spawning() else _Started
    child = kind(entry, argument, said, seconds + _GRACE)
    ends = time.monotonic() + seconds
    try:
        while (code := child.wait(_POLL)) is None and time.monotonic() < ends:
            check()
    finally:
        child.end()
    return Ended(code, _end_of(said))


def _is_spawning() -> bool:
    """Whether children come by multiprocessing: in a program that somebody froze in another way."""
    return frozen.is_frozen() and not frozen.starts_children()


def _end_stray() -> NoReturn:
    """The program itself runs in the place of a child, and would start another one: its parent waits for its end."""
    if sys.stderr is not None:
        sys.stderr.write("A frozen program must call multiprocessing.freeze_support() first of all.\n")
        sys.stderr.flush()
    os._exit(1)


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _READ, 0))
        return last_words(file.read(_READ))


def last_words(data: bytes) -> str:
    """What a child wrote to standard error, up to the assertion that ended it."""
    said = data.decode("utf-8", "replace")
    ends = max((match.end() for match in _ASSERTION.finditer(said)), default=None)
    return said[:ends].strip()[-_KEPT:]


class _Started:
    """An interpreter of its own, which knows nothing of the application's main module, and one that watches it."""

    def __init__(self, entry: str, argument: str, said: Path, seconds: float) -> None:
        watch = [sys.executable, "-I", "-S", str(_WATCH)]
        child = [sys.executable, "-P", "-c", _CHILD, str(_ROOT)]
        marked = {}
        if frozen.starts_children():
            watch, child = frozen.command(_WATCHES), frozen.command(_ENTERS)
            marked = {frozen.MARK: "1"}
        with said.open("ab") as file:
            self._watch = subprocess.Popen(
                [*watch, str(said.parent), str(seconds), *child, entry, argument, str(said)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                # Python's own report of a crash would bury the library's last words.
                env={**os.environ, "PYTHONFAULTHANDLER": "", **marked},
                start_new_session=os.name == "posix",
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )

    def wait(self, seconds: float) -> int | None:
        try:
            code = self._watch.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        said = self._watch.stdout.read() if self._watch.stdout else b""
        return int(said) if said else code

    def end(self) -> None:
        with suppress(OSError):  # it has ended
            self._watch.communicate(b"." if self._watch.poll() is None else None)


class _Spawned:
    """The application itself, started again by multiprocessing."""

    def __init__(self, entry: str, argument: str, said: Path, seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._child = context.Process(
            target=_watched, args=(seconds, entry, argument, str(said)), daemon=True
        )
        self._child.start()

    def wait(self, seconds: float) -> int | None:
        self._child.join(seconds)
        return self._child.exitcode

    def end(self) -> None:
        if self._child.is_alive():
            self._child.kill()
            self._child.join()


# In the child


def enter(entry: str, argument: str, said: str) -> None:
    """The child: do the work, and let what is written to standard error be found in the file `said`."""
    leave_no_core()
    os.environ.pop(frozen.MARK, None)
    os.environ["GGML_NO_BACKTRACE"] = "1"  # a debugger that is started for it takes seconds
    file = os.open(said, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 2)
    module, _, name = entry.partition(":")
    getattr(import_module(module), name)(argument)


def _watched(seconds: float, entry: str, argument: str, said: str) -> None:
    """The child of a frozen program, which has to watch for its parent's end itself."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            shutil.rmtree(Path(said).parent, ignore_errors=True)
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if hasattr(signal, "alarm"):
        signal.alarm(math.ceil(seconds))
    enter(entry, argument, said)


def leave_no_core() -> None:
    """A crash that is expected and explained needs no memory image on the user's disk."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
