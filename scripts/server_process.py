"""ServerProcess: `localspec serve` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import TracebackType

import psutil

READY = "is ready on "
STOP_SECONDS = 30.0


class ServerProcess:
    """Runs from `with` to the end of the block; raises `RuntimeError` with its last words if it does not start.

    url: where it listens, without /v1. process: for its memory and processor time.
    """

    def __init__(self, *options: str) -> None:
        self._options = options

    def __enter__(self) -> ServerProcess:
        command = [sys.executable, "-m", "localspec", "serve", "--port", "0", *self._options]
        self._child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.process = psutil.Process(self._child.pid)
        assert self._child.stderr is not None
        said: list[str] = []
        for line in self._child.stderr:
            said.append(line)
            if READY in line:
                self.url = line.split(READY)[1].strip()
                threading.Thread(target=self._drain, daemon=True).start()
                return self
        raise RuntimeError(f"localspec serve ended: {''.join(said)}")

    def _drain(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            sys.stderr.write(line)

    @property
    def cpu_seconds(self) -> float:
        """Processor time it has taken until now."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.terminate()
        try:
            self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            raise
