"""A small model hub on 127.0.0.1 that speaks the real protocol of file download, and misbehaves on demand.

`HEAD /org/repo/resolve/REVISION/FILE` answers 302 with X-Repo-Commit, X-Linked-Etag (the sha256),
X-Linked-Size and the Location of the bytes on a second origin, as a CDN is; `GET` there honours ranges.
`GET /api/models/org/repo?blobs=true` answers with the repository's commit, licence and files.
"""

from __future__ import annotations

import gzip
import hashlib
import json
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
from urllib.parse import quote, unquote, urlsplit

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

    files:        of every repository that `repos` does not have; by path, as in `repos`.
    repos:        files of single repositories, by name; any other does not exist then.
    commit:       of every repository's main branch; the bytes are the same at any commit.
    in_git:       paths that are kept by git itself, so that they have no sha256.
    info_fault:   like `fault`, for questions about repositories; also "no-json" and "no-sha".
    licence:      as every repository states it.
    fault:        for requests of metadata: a key of ERRORS, "hang", "html", "reset", "moved" (the repository has
                  another name: a relative redirect) or "circle".
    cdn_faults:   one per request of bytes: a key of ERRORS, "html", "xhtml", "wrong-range", "wrong-total",
                  "no-range", "unsatisfied", "short" (416 of a shorter file), "gzip", "unsized" (no length), or one
                  that sends `cut` bytes first: "truncate", "stall", "reset", "trickle" (a byte now and then).
                  "trickle-headers" sends those so.
    etag, size:   what the metadata say instead of the truth.
    on_probe:     called at every request of metadata.
    requests:     every request, as method, path and user agent.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commit: str = "89abcdef0123456789abcdef0123456789abcdef"
    in_git: set[str] = field(default_factory=set)
    info_fault: str | None = None
    licence: str = "apache-2.0"
    asked_for: list[str] = field(default_factory=list)
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
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    endpoint: str = ""
    cdn: str = ""
    closing: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # heads and bodies are written apart
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

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        self.hub.requests.append((self.command, urlsplit(self.path).path, self.headers.get("User-Agent")))
        return True

    def do_HEAD(self) -> None:
        self.hub.probes += 1
        self.resolve()

    def do_GET(self) -> None:
        match = re.fullmatch(
            r"/api/models/([^/]+/[^/]+)(?:/revision/(\w+))?", unquote(urlsplit(self.path).path)
        )
        if match is None:
            self.resolve()
        else:
            self.info(match[1], match[2] or self.hub.commit)

    def refused(self, fault: str | None) -> bool:
        """Misbehaves if it should, and says whether it did."""
        self.hub.tokens.append(self.headers.get("Authorization"))
        if fault is None or (fault == "moved" and "/moved/" in self.path):
            return False
        if fault == "hang":
            self.hub.closing.wait(30)
            self.close_connection = True
        elif fault == "html":
            self.reply(200, {"Content-Type": "text/html"}, b"<html>log in</html>")
        elif fault == "reset":
            self.reset()
        elif fault == "moved":
            self.reply(307, {"Location": re.sub("^/[^/]+", "/moved", self.path)})
        elif fault == "circle":
            self.reply(302, {"Location": self.path})
        else:
            self.reply(*ERRORS[fault])
        return True

    def info(self, repo: str, commit: str) -> None:
        hub = self.hub
        hub.asked_for.append(self.path)
        odd = {"no-json": b"[]", "no-sha": b'{"id": "a/b"}'}.get(hub.info_fault or "")
        if odd is not None:
            self.reply(200, {"Content-Type": "application/json"}, odd)
            return
        files = hub.repos.get(repo) if hub.repos else hub.files
        if self.refused(hub.info_fault or ("no-repo" if files is None else None)):
            return
        assert files is not None
        answer = {
            "id": repo,
            "sha": commit,
            "tags": ["gguf", f"license:{hub.licence}"],
            "siblings": [self.described(path, body) for path, body in files.items()],
        }
        self.reply(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    def described(self, path: str, body: bytes) -> dict[str, object]:
        hub = self.hub
        git = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        found: dict[str, object] = {"rfilename": path, "size": len(body), "blobId": git}
        if path not in hub.in_git:
            sha256 = hub.etag or hashlib.sha256(body).hexdigest()
            found["lfs"] = {"size": len(body), "sha256": sha256, "pointerSize": 134}
        return found

    def resolve(self) -> None:
        hub = self.hub
        hub.on_probe()
        if self.refused(hub.fault):
            return
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)", unquote(self.path))
        files = hub.repos.get(match[1], {}) if match and hub.repos else hub.files
        body = files.get(match[3]) if match else None
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
                "Location": f"{hub.cdn}/blob/{quote(match[1])}/{quote(match[3])}?signature=abc",
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
        org, name, path = unquote(urlsplit(self.path).path).removeprefix("/blob/").split("/", 2)
        body = (hub.repos[f"{org}/{name}"] if hub.repos else hub.files)[path]
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
        honoured = asked if hub.ranges else None
        first, _, last = (honoured or "bytes=0-").removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last) + 1, len(body)) if last else len(body)
        if start >= len(body):
            self.reply(416, {"Content-Range": f"bytes */{len(body)}"})
            return
        rest = body[start:stop]
        self.send_response(206 if honoured else 200)
        if honoured and fault != "no-range":
            shown = start + 1 if fault == "wrong-range" else start
            total = len(body) + 1 if fault == "wrong-total" else len(body)
            self.send_header("Content-Range", f"bytes {shown}-{stop - 1}/{total}")
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
