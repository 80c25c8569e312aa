"""A small package index on 127.0.0.1 that serves a folder of wheels, counts their bytes and misbehaves on demand."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

STEP = 1 << 14


@dataclass
class Index:
    """What the server holds and how it behaves; change it at any time.

    page_fault:   for pages: "html" (a login page) or "hang".
    faults:       one per request of a wheel: "truncate", "stall", "html" or "damaged" (other bytes).
    hashes:       whether pages tell the sha256 of wheels, as the public index does.
    chunk_pause:  seconds between pieces of 16 kB.
    on_stall:     called before the half of a wheel is sent that is followed by nothing.
    """

    folder: Path
    page_fault: str | None = None
    faults: list[str] = field(default_factory=list)
    hashes: bool = False
    chunk_pause: float = 0.0
    served: int = 0
    asked: list[str] = field(default_factory=list)
    agents: set[str | None] = field(default_factory=set)
    on_stall: Callable[[], None] = lambda: None
    url: str = ""
    closing: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # heads and bodies are written apart
    index: ClassVar[Index]

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, kind: str, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.index.agents.add(self.headers.get("User-Agent"))
        if self.path.startswith("/files/"):
            self.send_wheel(self.index.folder / self.path.removeprefix("/files/"))
        elif self.index.page_fault == "hang":
            self.index.closing.wait(30)
            self.close_connection = True
        elif self.index.page_fault == "html":
            self.reply("text/html", b"<html><body>Please log in</body></html>")
        else:
            self.send_page(self.path.strip("/").replace("-", "_"))

    def send_page(self, module: str) -> None:
        wheels = sorted(self.index.folder.glob(f"{module}-*.whl"))
        if not wheels:
            self.reply("text/plain", b"not found", 404)
            return
        links = (f'<a href="/files/{wheel.name}{self.fragment(wheel)}">{wheel.name}</a>' for wheel in wheels)
        self.reply("text/html", f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode())

    def fragment(self, wheel: Path) -> str:
        return f"#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}" if self.index.hashes else ""

    def send_wheel(self, wheel: Path) -> None:
        index = self.index
        index.asked.append(wheel.name)
        fault = index.faults.pop(0) if index.faults else None
        if fault == "html":
            self.reply("text/html", b"<html>log in</html>")
            return
        if fault == "stall":
            index.on_stall()
        body = wheel.read_bytes()
        if fault == "damaged":
            body = bytes(255 - byte for byte in body)
        start = int(match[1]) if (match := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))) else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        rest = body[start:]
        self.stream(rest[: len(rest) // 2] if fault in ("stall", "truncate") else rest)
        if fault == "stall":
            index.closing.wait(30)
        if fault in ("stall", "truncate"):
            self.close_connection = True

    def stream(self, body: bytes) -> None:
        with suppress(OSError):
            for start in range(0, len(body), STEP):
                piece = body[start : start + STEP]
                self.index.served += len(piece)
                self.wfile.write(piece)
                if self.index.chunk_pause and self.index.closing.wait(self.index.chunk_pause):
                    break
            return
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


@contextmanager
def running_index(folder: Path) -> Iterator[Index]:
    """An index of the wheels in `folder`, on a free port of 127.0.0.1."""
    index = Index(folder)
    server = _Server(("127.0.0.1", 0), type("Bound", (_Handler,), {"index": index}))
    index.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
