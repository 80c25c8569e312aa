"""Whether RPC servers compute what this machine computes, and whether a lost one leaves the process alive.

    python scripts/rpc_check.py SERVER TARGET.gguf [DRAFT.gguf]

SERVER is llama.cpp's `ggml-rpc-server` (`rpc-server` in older ones); the installed llama-cpp-python must be compiled
with RPC (docs/rpc.md). Servers are started on this machine's loopback only. Prints a line of JSON for each check, and
ends with exit code 1 where one failed.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localspec import LLM, Chunk
from localspec.errors import InvalidRequest, RpcError
from localspec.system.rpc_servers import greet

PROMPT = "Explain what a mechanical watch is, part by part."
TOKENS = 48
OPTIONS: dict[str, Any] = {
    "n_ctx": 512, "threads": 1, "draft_tokens": 3, "library": "llama", "repack": False,
}  # fmt: skip
"""A server rearranges no weights: where this machine does, its kernels round otherwise."""
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS}


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One on loopback, which can be killed and started again at the same address."""

    def __init__(self, program: str) -> None:
        self._program, self._port = program, free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Returns when it answers."""
        self._process = subprocess.Popen(
            [self._program, "-H", "127.0.0.1", "-p", str(self._port), "-t", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ends = time.monotonic() + 30
        while True:
            try:
                greet(self.address)
                return
            except RpcError:
                if time.monotonic() > ends or self._process.poll() is not None:
                    self.kill()
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        """At once."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """So that it goes silent, and its connections stay."""
        self._process.send_signal(signal.SIGSTOP)


@contextmanager
def servers(program: str, count: int) -> Iterator[list[Server]]:
    """So many, which are killed at the end."""
    running: list[Server] = []
    try:
        for _ in range(count):
            running.append(Server(program))
        yield running
    finally:
        for server in running:
            server.kill()


def error_of(action: Callable[[], object]) -> str:
    """The `RpcError` that it raises, or ""."""
    try:
        action()
    except RpcError as error:
        return str(error)
    return ""


class Check:
    """All checks of one pair of files with one program of the server."""

    def __init__(self, program: str, target: Path, draft: Path | None) -> None:
        self._program, self._target, self._draft = program, target, draft
        self.failed = 0

    def run(self) -> None:
        """Every one, in turn."""
        with self._load() as llm:
            self._expected = llm.generate(PROMPT, **GREEDY).ids
        for name, count, options in self._placements():
            with servers(self._program, count) as running:
                self._compare(name, running, options(running))
        with servers(self._program, 1) as running:
            self._lose(running[0])
        with servers(self._program, 1) as running:
            self._second_program(running[0])
        with servers(self._program, 1) as running:
            self._silence(running[0])

    def _placements(self) -> Iterator[tuple[str, int, Callable[[list[Server]], dict[str, Any]]]]:
        yield "target on one server", 1, lambda on: {"rpc": on[0].address}
        yield "one layer of the target", 1, lambda on: {"rpc": on[0].address, "gpu_layers": 1}
        yield "target on two servers", 2, lambda on: {"rpc": [server.address for server in on]}
        if self._draft is not None:
            yield "draft on a server", 1, lambda on: {"draft_rpc": on[0].address}
            yield "both on one server", 1, lambda on: {"rpc": on[0].address, "draft_rpc": on[0].address}

    def _load(self, **further: Any) -> LLM:
        return LLM.from_files(self._target, self._draft, **{**OPTIONS, **further})

    def _compare(self, name: str, running: list[Server], options: dict[str, Any]) -> None:
        with self._load(**options) as llm:
            started = time.monotonic()
            answer = llm.generate(PROMPT, **GREEDY)
            seconds = time.monotonic() - started
        after = [error_of(lambda server=server: greet(server.address)) for server in running]  # type: ignore[misc]
        self._tell(
            name,
            answer.ids == self._expected and not any(after),
            seconds=round(seconds, 2),
            accepted=answer.stats.accepted,
            servers_after_it=after,
        )

    def _lose(self, server: Server) -> None:
        with self._load(rpc=server.address) as llm:
            stream = llm.stream(PROMPT, temperature=0, max_tokens=400)
            next(stream)
            server.kill()
            said = error_of(lambda: list(stream))
            still_away = error_of(lambda: llm.generate(PROMPT, **GREEDY))
            server.start()
            again = llm.generate(PROMPT, **GREEDY).ids == self._expected
            self._tell(
                "a server killed in the middle of an answer",
                bool(said and still_away and again),
                said=said,
                while_it_is_away=still_away,
                answers_again=again,
            )

    def _second_program(self, server: Server) -> None:
        with self._load(rpc=server.address) as llm:
            said = error_of(lambda: self._load(rpc=server.address))
            same = llm.generate(PROMPT, **GREEDY).ids == self._expected
        self._tell("a second load on the same server is refused", bool(said) and same, said=said)

    def _silence(self, server: Server) -> None:
        """As where a machine loses its network: nothing is closed. A cancel ends the answer all the same."""
        with self._load(rpc=server.address) as llm:
            stream = llm.stream(PROMPT, temperature=0, max_tokens=400)
            first, rest = next(stream), list[Chunk]()
            server.stop()
            reader = threading.Thread(target=lambda: rest.extend(stream))
            reader.start()
            time.sleep(1)
            stream.cancel()
            started = time.monotonic()
            reader.join()
            seconds = time.monotonic() - started
            completion = rest[-1].completion
            assert completion is not None
            self._tell(
                "a cancel ends an answer whose server went silent",
                completion.finish_reason == "cancelled"
                and completion.ids[: len(first.tokens)] == first.tokens,
                seconds=round(seconds, 1),
            )

    def _tell(self, name: str, passed: bool, **facts: object) -> None:
        self.failed += not passed
        print(json.dumps({"check": name, "passed": passed, **facts}, ensure_ascii=False), flush=True)


def main() -> int:
    """Run as the docstring says."""
    if len(sys.argv) not in (3, 4) or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    program, target, *draft = sys.argv[1:]
    try:
        check = Check(program, Path(target), Path(draft[0]) if draft else None)
        check.run()
    except InvalidRequest as error:
        print(error)
        return 2
    print(json.dumps({"passed": check.failed == 0, "failed": check.failed}))
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
