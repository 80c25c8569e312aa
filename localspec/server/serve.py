"""uvicorn on a socket of our own, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn

from localspec.errors import InvalidRequest, LoadCancelled
from localspec.llm import LLM
from localspec.server.app import create_app
from localspec.server.service import Service
from localspec.server.settings import Settings

log = logging.getLogger(__name__)
CLEAN_UP_SECONDS = 5
"""Given to ended answers, to tell their clients so."""
OTHER_PATH = "Give another path."
OTHER_PATH_COMMAND = "Give another --uds."


class Server(uvicorn.Server):
    """Ends gracefully: the first signal lets running answers finish for a while, a second one ends them.

    tell: gets a sentence where something goes on after the first.
    """

    def __init__(
        self, config: uvicorn.Config, service: Service, tell: Callable[[str], None] = log.info
    ) -> None:
        super().__init__(config)
        self._service, self._tell = service, tell
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Like uvicorn's; remembers the loop for signals and `stop`."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal, in the main thread: running answers may finish, and end at a second one."""
        again = self.should_exit
        if not again:  # uvicorn would drop everything at the second one
            super().handle_exit(sig, frame)
        self._end_answers(0.0 if again else self._service.settings.grace)

    def stop(self) -> None:
        """End as for a first signal. Any thread may call it."""
        self.should_exit = True
        self._end_answers(self._service.settings.grace)

    def _end_answers(self, seconds: float) -> None:
        def end() -> None:
            self._service.refuse()
            if seconds and (running := self._service.num_running):
                self._tell(
                    f"stopping: what is being answered ({running}) may finish within {seconds:g} seconds; "
                    "Ctrl-C ends it at once"
                )
            asyncio.get_running_loop().call_later(seconds, self._service.end_all)

        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(end)


def serve(
    load: Callable[[], LLM],
    settings: Settings,
    listening: socket.socket,
    tell: Callable[[str], None] = log.info,
) -> None:
    """Answer requests on `listening` until SIGINT or SIGTERM; raises what `load` raised, unless it was ended early.

    tell: gets a sentence about what goes on after the first signal.
    """
    errors: list[BaseException] = []

    def failed(error: BaseException) -> None:
        errors.append(error)
        server.stop()

    app = create_app(load, settings, failed)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        loop="asyncio",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(settings.grace) + CLEAN_UP_SECONDS,
    )
    server = Server(config, app.state.service, tell)
    server.run(sockets=[listening])
    if errors and not isinstance(errors[0], LoadCancelled):
        raise errors[0]


@contextlib.contextmanager
def tcp_socket(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound, so that a port in use is refused before a model is loaded. Raises `InvalidRequest`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(
            f"The server cannot listen on {host}:{port}: {reason}.",
            "Give another host or port.",
            command="Give another --host or --port.",
        ) from None
    with listening:
        # Connections inherit it. asyncio does not set it where it did not make the listening socket itself, and an
        # answer's last part then waits for the client's delayed acknowledgement: 40 ms on Linux.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listening


@contextlib.contextmanager
def unix_socket(path: Path) -> Iterator[socket.socket]:
    """A socket that this user alone may use; its file is removed at the end. Raises `InvalidRequest`."""
    if not hasattr(socket, "AF_UNIX"):
        raise InvalidRequest(
            "This system has no Unix sockets.", "Use a host and a port.", command="Use --host and --port."
        )
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listening:
        old = os.umask(0o177)
        try:
            listening.bind(str(path))
        except OSError as error:
            reason = error.strerror or str(error)
            if not path.parent.is_dir():
                reason = f"there is no folder {path.parent}"
            raise InvalidRequest(
                f"The server cannot listen on {path}: {reason}.", OTHER_PATH, command=OTHER_PATH_COMMAND
            ) from None
        finally:
            os.umask(old)
        listening.listen()
        try:
            yield listening
        finally:
            path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """Remove a killed server's socket; never a regular file, and never a socket that somebody listens on."""
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return
    if not is_socket:
        raise InvalidRequest(f"{path} exists and is no socket.", OTHER_PATH, command=OTHER_PATH_COMMAND)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            return
    raise InvalidRequest(f"Another server listens on {path}.", OTHER_PATH, command=OTHER_PATH_COMMAND)
