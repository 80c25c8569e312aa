"""A small model hub on 127.0.0.1 that speaks the real protocol of file download, and misbehaves on demand.

`HEAD /org/repo/resolve/REVISION/FILE` answers 302 with X-Repo-Commit, X-Linked-Etag (the sha256),
X-Linked-Size and the Location of the bytes on a second origin, as a CDN is; `GET` there honours ranges.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

ERRORS: dict[str, tuple[int, dict[str, str]]] = {
    "expired-token": (401, {"X-Error-Message": 'User Access Token "laptop" is expired'}),
    "bad-token": (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
    "gated": (
        403,
        {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this repository is restricted"},
    ),
    "gated-anonymous": (401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Please log in"}),
    "forbidden": (403, {"X-Error-Message": "Forbidden"}),
    "no-repo": (404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}),
    "private": (401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}),
    "no-revision": (404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}),
    "no-file": (404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}),
    "rate-limit": (429, {}),
    "error-500": (500, {}),
    "error-503": (503, {}),
}

CUTTING = ("truncate", "stall", "reset", "trickle")


@dataclass
class Hub:
    """What the server holds and how it behaves; change it at any time.

    fault:        for requests of metadata: a key of ERRORS, "hang", "html", "reset", "moved" (the repository has
                  another name: a relative redirect) or "circle".
    cdn_faults:   one per request of bytes: a key of ERRORS, "html", "xhtml", "wrong-range", "wrong-total",
                  "no-range", "unsatisfied", "short" (416 of a shorter file), "gzip", "unsized" (no length), or one
                  that sends `cut` bytes first: "truncate", "stall", "reset", "trickle" (a byte now and then).
                  "trickle-headers" sends those so.
    etag, size:   what the metadata say instead of the truth.
    on_probe:     called at every request of metadata.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    fault: str | None = None
    cdn_faults: list[str] = field(default_factory=list)
    cut: int = 1000
    ranges: bool = True
    etag: str | None = None
    size: int | None = None
    chunk_pause: float = 0.0
    served: int = 0
    probes: int = 0
    ranges_asked: list[str | None] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    cdn_tokens: list[str | None] = field(default_factory=list)
    on_probe: Callable[[], None] = lambda: None
    endpoint: str = ""
    cdn: str = ""
    closing: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ClassVar[Hub]

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reset(self) -> None:
        """Ends the connection as a crashed machine or a firewall does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.close(self.connection.detach())
        self.close_connection = True

    def do_HEAD(self) -> None:
        self.hub.probes += 1
        self.resolve()

    def do_GET(self) -> None:
        self.resolve()

    def resolve(self) -> None:
        hub = self.hub
        hub.tokens.append(self.headers.get("Authorization"))
        hub.on_probe()
        if hub.fault == "hang":
            hub.closing.wait(30)
            self.close_connection = True
        elif hub.fault == "html":
            self.reply(200, {"Content-Type": "text/html"}, b"<html>log in</html>")
        elif hub.fault == "reset":
            self.reset()
        elif hub.fault == "moved" and "/moved/" not in self.path:
            self.reply(307, {"Location": re.sub("^/[^/]+", "/moved", self.path)})
        elif hub.fault == "circle":
            self.reply(302, {"Location": self.path})
        elif hub.fault in ERRORS:
            self.reply(*ERRORS[hub.fault])
        else:
            self.locate()

    def locate(self) -> None:
        hub = self.hub
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([0-9a-f]{40})/([^/]+)", self.path)
        body = hub.files.get(match[3]) if match else None
        if match is None or body is None:
            self.reply(*ERRORS["no-file"])
            return
        etag = hub.etag or hashlib.sha256(body).hexdigest()
        size = len(body) if hub.size is None else hub.size
        self.reply(
            302,
            {
                "X-Repo-Commit": match[2],
                "X-HF-Warning": f"{secrets.token_hex(4)}; You are not logged in. Please do.",
                "X-Linked-Etag": f'"{etag}"',
                "X-Linked-Size": str(size),
                "Location": f"{hub.cdn}/blob/{match[3]}?signature=abc",
            },
        )


class _CdnHandler(_Handler):
    def setup(self) -> None:
        super().setup()
        # What a killed client had not read is lost: little, as far as that is the server's choice.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)

    def resolve(self) -> None:
        hub = self.hub
        fault = hub.cdn_faults.pop(0) if hub.cdn_faults else None
        hub.cdn_tokens.append(self.headers.get("Authorization"))
        body = hub.files[self.path.removeprefix("/blob/").partition("?")[0]]
        asked = self.headers.get("Range")
        hub.ranges_asked.append(asked)
        if fault in ("html", "xhtml"):
            kind = {"html": "text/html; charset=utf-8", "xhtml": "application/xhtml+xml"}[fault]
            self.reply(200, {"Content-Type": kind}, b"<html>log in</html>")
        elif fault in ("unsatisfied", "short"):
            size = len(body) if fault == "unsatisfied" else 7
            self.reply(416, {"Content-Range": f"bytes */{size}"})
        elif fault == "trickle-headers":
            self.trickle(b"HTTP/1.1 200 OK\r\nX-Padding: ")
        elif fault in ERRORS:
            self.reply(*ERRORS[fault])
        else:
            self.send(body, asked, fault)

    def send(self, body: bytes, asked: str | None, fault: str | None) -> None:
        hub = self.hub
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and hub.ranges else 0
        if start >= len(body):
            self.reply(416, {"Content-Range": f"bytes */{len(body)}"})
            return
        rest = body[start:]
        self.send_response(206 if asked and hub.ranges else 200)
        if asked and hub.ranges and fault != "no-range":
            shown = start + 1 if fault == "wrong-range" else start
            total = len(body) + 1 if fault == "wrong-total" else len(body)
            self.send_header("Content-Range", f"bytes {shown}-{len(body) - 1}/{total}")
        if fault == "gzip":
            self.send_header("Content-Encoding", "gzip")
            rest = gzip.compress(rest)
        if fault != "unsized":
            self.send_header("Content-Length", str(len(rest)))
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        self.stream(rest[: hub.cut] if fault in CUTTING else rest)
        if fault in CUTTING or fault == "unsized":
            self.close_connection = True
        if fault == "stall":
            hub.closing.wait(30)
        elif fault == "reset":
            self.reset()
        elif fault == "trickle":
            self.trickle(rest[hub.cut :])

    def trickle(self, data: bytes) -> None:
        """Sends a byte now and then, for ever or until the client has gone."""
        sent = 0
        with suppress(OSError):
            while not self.hub.closing.wait(0.01):
                self.wfile.write(data[sent : sent + 1] or b"x")
                self.hub.served += 1
                sent += 1
        self.close_connection = True

    def stream(self, body: bytes) -> None:
        step = 1 << 14
        for start in range(0, len(body), step):
            piece = body[start : start + step]
            self.hub.served += len(piece)  # before the client can have read it and looked
            try:
                self.wfile.write(piece)
                self.wfile.flush()
            except OSError:
                self.close_connection = True
                return
            if self.hub.chunk_pause and self.hub.closing.wait(self.hub.chunk_pause):
                return


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub and its CDN, each on a free port of 127.0.0.1."""
    hub = Hub()
    servers = [
        _Server(("127.0.0.1", 0), type("Bound", (kind,), {"hub": hub})) for kind in (_Handler, _CdnHandler)
    ]
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    ports = [server.server_address[1] for server in servers]
    # Another host name, as a CDN has: some versions of the client tell origins apart by host alone.
    hub.endpoint, hub.cdn = f"http://127.0.0.1:{ports[0]}", f"http://localhost:{ports[1]}"
    try:
        yield hub
    finally:
        hub.closing.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()
