"""A real server on a free port, with a model of a few kilobytes, in a thread of the test's own process."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import uvicorn

from localspec import LLM
from localspec.decoding.params import SamplingParams
from localspec.server.app import create_app
from localspec.server.serve import Server, tcp_socket
from localspec.server.service import Service
from localspec.server.settings import Settings

from .tinygguf import write_llama

QUESTION = [{"role": "user", "content": "hello there"}]
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Handed to httpx, which else reads all certificates there are for each call, a fifth of a second every time."""
SECONDS = 60.0
"""Until a test gives up waiting; nothing is expected to take so long."""


@dataclass
class Running:
    """A server that listens. service: its inside, to be read only."""

    url: str
    service: Service
    server: Server
    failures: list[BaseException]

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client, unchanged."""
        given = {"api_key": "none", "max_retries": 0, "timeout": SECONDS} | options
        given.setdefault("http_client", openai.DefaultHttpxClient(verify=NO_TLS))
        return openai.OpenAI(base_url=f"{self.url}/v1", **given)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """A JSON body."""
        return httpx.post(self.url + path, json=body, timeout=SECONDS, verify=NO_TLS, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=SECONDS, verify=NO_TLS, **options)


@contextmanager
def running(load: Callable[[], LLM], **settings: Any) -> Iterator[Running]:
    """Serve until the end of the block, after which every thread is gone. Greedy unless `settings` say otherwise."""
    chosen = Settings(**{"name": "tiny", "params": SamplingParams(temperature=0), "grace": 0.5} | settings)
    failures: list[BaseException] = []
    with tcp_socket("127.0.0.1", 0) as listening:
        app = create_app(load, chosen, failures.append)
        config = uvicorn.Config(app, log_config=None, access_log=False, loop="asyncio", ws="none")
        server = Server(config, app.state.service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            wait_until(lambda: server.started)
            yield Running(url, app.state.service, server, failures)
        finally:
            server.stop()
            thread.join(SECONDS)
    assert not thread.is_alive(), "the server did not stop"


def ready(server: Running) -> Running:
    """`server` once its model is loaded."""
    wait_until(lambda: server.failures or server.get("/health").status_code == 200)
    assert not server.failures, server.failures
    return server


@contextmanager
def tool_client(folder: Path, template: str) -> Iterator[openai.OpenAI]:
    """A client of a real engine whose model has a template with tools, and random weights."""
    path = write_llama(folder / "tiny.gguf", seed=1, template=template, n_ctx_train=2048, ends=True)
    with (
        running(lambda: LLM.from_files(path, n_ctx=2048, threads=1, draft_tokens=3)) as server,
        ready(server).client() as client,
    ):
        yield client


def wait_until(condition: Callable[[], object]) -> None:
    """Until it is true."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


class Gate:
    """A logits processor that lets an answer go on only while it is open. reached: an answer waits at it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self.open()

    def open(self) -> None:
        """Let answers pass."""
        self._open.set()

    @property
    def passing(self) -> bool:
        """Whether it is open."""
        return self._open.is_set()

    def shut(self) -> None:
        """Hold the next row."""
        self.reached.clear()
        self._open.clear()

    def __call__(self, ids: Any, logits: Any) -> Any:
        if not self._open.is_set():
            self.reached.set()
            self._open.wait(SECONDS)
        return logits
