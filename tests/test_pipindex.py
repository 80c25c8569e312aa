"""What an index offers, asked through the true pip, on indexes that are folders or answer on 127.0.0.1."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from localspec.errors import AccessDenied, FileMissing, SourceUnreachable
from localspec.hub.pipindex import index_versions
from tests.hubkit import make_wheels


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)


def test_versions_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.0", "1.2"):
        make_wheels(tmp_path, b"abc", 1, version=version)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert index_versions("hubkit-part1") == ["1.2", "1.0"]
    with pytest.raises(FileMissing, match="no hubkit-part9"):
        index_versions("hubkit-part9")


@pytest.fixture(params=[401, 500])
def status(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(request.param)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_address[1]}/simple")
    yield request.param
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_index_that_refuses_or_fails(status: int) -> None:
    with pytest.raises(AccessDenied if status == 401 else SourceUnreachable):
        index_versions("hubkit-part1")


def test_an_index_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(SourceUnreachable):
        index_versions("hubkit-part1")
    with pytest.raises(SourceUnreachable, match=r"within 0\.01 s"):
        index_versions("hubkit-part1", seconds=0.01)
