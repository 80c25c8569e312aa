"""A child process that goes on, and is talked with by pipes: each message is one picklable object.

Both sides are this package: what comes out of the pipe is trusted as much as the process at its other end.
"""

from __future__ import annotations

import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from localspec.errors import BackendError, InvalidRequest
from localspec.system import frozen
from localspec.system.child import Ended, last_words, leave_no_core

_ROOT = Path(__file__).resolve().parents[2]
_CHILD = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from localspec.system.piped_child import enter; enter(*sys.argv[2:])"
)
_ENTERS = "localspec.system.piped_child:enter"
_SIZE = struct.Struct("<Q")
_KEPT_LINES = 200
_END_SECONDS, _CLOSE_SECONDS = 10.0, 1.0


class Pipe:
    """One end: `send` from any thread, `receive` in one. It ends where the other process does."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Raises `InvalidRequest` for what cannot be sent; whether the other process lives, `receive` says."""
        try:
            data = pickle.dumps(message)
        except Exception as error:  # whatever a caller's own types do
            raise InvalidRequest(
                f"What was given cannot go to the process that computes: {error}.",
                "Give plain values: texts, numbers, lists and dicts.",
            ) from error
        with self._sending, suppress(OSError, ValueError):  # ValueError: it was closed
            self._outgoing.write(_SIZE.pack(len(data)) + data)
            self._outgoing.flush()

    def receive(self) -> Any:
        """The next message. Raises `EOFError` at the end."""
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        return pickle.loads(self._read(size))

    def close(self) -> None:
        """Send no more, which ends the other process; not where somebody cannot send on, for it does not read."""
        if self._sending.acquire(timeout=_CLOSE_SECONDS):
            with suppress(OSError):
                self._outgoing.close()
            self._sending.release()

    def leave(self) -> None:
        """Receive no more."""
        with suppress(OSError):
            self._incoming.close()

    def _read(self, size: int) -> bytes:
        try:
            data = self._incoming.read(size)
        except (OSError, ValueError):
            data = b""
        if len(data) < size:
            raise EOFError
        return data


class PipedChild:
    """A child that runs `entry`, "package.module:name", with its `Pipe`. It ends with this process, however that ends.

    A frozen program must be made with the hooks of `localspec.freezing`. Raises `BackendError` for another.
    """

    def __init__(self, entry: str) -> None:
        self._process = _started(entry)
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self.pipe = Pipe(self._process.stdout, self._process.stdin)
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._said: deque[bytes] = deque(maxlen=_KEPT_LINES)
        # The threads hold no reference to this object: dropping it ends the child, and so the threads.
        self._reader = _thread(_read_messages, self.pipe, self._messages)
        self._listener = _thread(_read_lines, self._process.stderr, self._said)
        self._ended: Ended | None = None
        self._ending = threading.Lock()
        weakref.finalize(self, _let_end, self.pipe, self._process)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._ended is None and self._process.poll() is None

    def receive(self, timeout: float) -> Any:
        """The next message. Raises `TimeoutError`, and `EOFError` where the child has ended."""
        try:
            message = self._messages.get(timeout=timeout)
        except queue.Empty:
            if self._reader.is_alive() or not self._messages.empty():
                raise TimeoutError from None
            raise EOFError from None  # an interrupt took the end
        if message is _END:
            self._messages.put(_END)  # for whoever asks again
            raise EOFError
        return message

    def end(self, seconds: float = 0.0) -> Ended:
        """End it: after `seconds` by force. How it ended, by itself or so."""
        with self._ending:
            if self._ended is None:
                self.pipe.close()
                self._ended = Ended(_end(self._process, seconds), self._last_words())
            return self._ended

    def _last_words(self) -> str:
        """What is in the pipes of one that ended is read to its end first."""
        for thread in (self._reader, self._listener):
            thread.join(_END_SECONDS)  # longer where a child of the child has the pipe still
        return last_words(b"".join(self._said))


_END = object()


def _started(entry: str) -> subprocess.Popen[bytes]:
    if frozen.is_frozen() and not frozen.starts_children():
        raise BackendError(
            "This frozen program cannot start a process that computes.",
            "Make it with PyInstaller, whose hooks localspec brings along.",
        )
    command = [sys.executable, "-P", "-c", _CHILD, str(_ROOT), entry]
    own = {"PYTHONFAULTHANDLER": "", "GGML_NO_BACKTRACE": "1"}
    if frozen.is_frozen():
        command = frozen.command(_ENTERS, entry)
        own[frozen.MARK] = "1"
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **own},
            start_new_session=os.name == "posix",
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except OSError as error:
        raise BackendError(
            f"The process that computes could not be started: {error}.",
            "Close other programs, and try again.",
        ) from error


def _thread(target: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name="localspec pipe", daemon=True)
    thread.start()
    return thread


def _read_messages(pipe: Pipe, messages: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            messages.put(pipe.receive())
    except EOFError:
        pass
    except Exception as error:  # a message that is none: the child cannot be understood any more
        messages.put(
            (None, "error", BackendError(f"The process that computes said what is no message: {error}."))
        )
    pipe.leave()
    messages.put(_END)


def _read_lines(file: IO[bytes], said: deque[bytes]) -> None:
    with file, suppress(OSError):
        said.extend(file)


def _let_end(pipe: Pipe, process: subprocess.Popen[bytes]) -> None:
    pipe.close()
    _end(process, _END_SECONDS)


def _end(process: subprocess.Popen[bytes], seconds: float) -> int:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


# In the child


def enter(entry: str) -> None:
    """The child: call `entry` with the pipe to its parent. What is printed here goes to standard error."""
    leave_no_core()
    os.environ.pop(frozen.MARK, None)
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    module, _, name = entry.partition(":")
    getattr(import_module(module), name)(Pipe(incoming, outgoing))
