"""Locks: stale ones, disks without locking, two pulls at once of one pair or of pairs that share a file."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from localspec.errors import StoreError
from localspec.hub.fetching import pull
from localspec.pairs.pair import Pair
from localspec.store.store import Store
from localspec.system.locks import NO_LOCKS, locked
from localspec.system.progress import Progress
from tests.hubkit import (
    KILLED,
    ROOT,
    Recorder,
    content,
    finished,
    go,
    hub_of,
    make_pair,
    model_file,
    sandbox,
    start_pull,
)
from tests.hubserver import Hub

BODIES = {name: content(seed, 400_000) for seed, name in enumerate(("a.gguf", "b.gguf", "draft.gguf"))}
FILES = {name: model_file(name, body) for name, body in BODIES.items()}
PAIR = make_pair(FILES["a.gguf"], FILES["draft.gguf"])
OTHER = make_pair(FILES["b.gguf"], FILES["draft.gguf"], name="other")

HOLDER = """
import os, sys
from pathlib import Path
import filelock
lock = getattr(filelock, sys.argv[1])(sys.argv[2])
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def _sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox(monkeypatch, tmp_path)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_of(BODIES, monkeypatch) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def no_locking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk whose file system has no locks."""

    def refuse(_self: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(filelock.FileLock, "_acquire", refuse)


def lock_file(store: Store, suffix: str = ".lock") -> Path:
    store.prepare()
    return store.home / "locks" / f"{FILES['a.gguf'].sha256}{suffix}"


def killed_holder(kind: str, path: Path) -> subprocess.Popen[str]:
    """A process that holds the lock and, once it reads a line, is killed with it."""
    command = [sys.executable, "-c", HOLDER, kind, str(path)]
    child = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def waits_for(child: subprocess.Popen[str], store: Store) -> None:
    """Pulls while `child` has the lock, and lets it be killed at the first word that it has."""
    heard: list[Progress] = []

    def progress(event: Progress) -> None:
        heard.append(event)
        if len(heard) == 1:
            go(child)
            assert finished(child)[0] == KILLED

    pull(make_pair(FILES["a.gguf"]), store=store, progress=progress)
    assert heard[0].source == "another process"


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("left", [b"", b"4711\n", b"some words of another program"])
def test_a_lock_file_that_was_left_does_not_block(store: Store, left: bytes) -> None:
    lock_file(store).write_bytes(left)
    assert pull(make_pair(FILES["a.gguf"]), store=store)[0].read_bytes() == BODIES["a.gguf"]


@pytest.mark.usefixtures("hub")
def test_the_lock_of_a_process_that_is_killed_while_one_waits(store: Store) -> None:
    waits_for(killed_holder("FileLock", lock_file(store)), store)


@pytest.mark.usefixtures("hub", "no_locking")
def test_on_a_disk_without_locking_too(store: Store) -> None:
    waits_for(killed_holder("SoftFileLock", lock_file(store, ".owner")), store)
    assert list((store.home / "locks").glob("*.owner")) == []


@pytest.mark.parametrize("code", sorted(NO_LOCKS))
def test_every_way_to_lack_locks_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(_self: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(filelock.FileLock, "_acquire", refuse)
    with locked(tmp_path / "x.lock"):
        assert (tmp_path / "x.owner").exists()
    assert not (tmp_path / "x.owner").exists()


def test_a_lock_that_cannot_be_made_is_named(store: Store) -> None:
    lock_file(store).mkdir()
    with pytest.raises(StoreError, match=r"The store cannot use .*\.lock") as caught:
        pull(make_pair(FILES["a.gguf"]), store=store)
    assert "LOCALSPEC_HOME" in caught.value.remedy


def pulled_by_threads(*pairs: Pair, home: Path) -> list[BaseException]:
    """Pulls each pair in a thread of its own, all at once; what went wrong."""
    faults: list[BaseException] = []
    start = threading.Barrier(len(pairs))

    def run(pair: Pair) -> None:
        start.wait()
        try:
            pull(pair, store=Store(home))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults


@pytest.mark.parametrize("pairs", [(PAIR, PAIR), (PAIR, OTHER), (PAIR, OTHER, PAIR, OTHER)])
def test_threads_at_once_fetch_each_file_once(hub: Hub, store: Store, pairs: tuple[Pair, ...]) -> None:
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    hub.chunk_pause = 0.002
    assert pulled_by_threads(*pairs, home=store.home) == []
    assert hub.served == sum(file.bytes for file in {file for pair in pairs for file in pair.files})
    for pair in pairs:
        for path, file in zip(store.pair_paths(pair), pair.files, strict=True):
            assert path is not None
            assert path.read_bytes() == BODIES[file.file]
    assert logger.level == level


@pytest.mark.usefixtures("no_locking")
def test_threads_on_a_disk_without_locking(hub: Hub, store: Store) -> None:
    hub.chunk_pause = 0.002
    assert pulled_by_threads(PAIR, OTHER, home=store.home) == []
    assert hub.served == sum(map(len, BODIES.values()))


def test_processes_that_share_a_file_fetch_it_once(hub: Hub, store: Store) -> None:
    children = [start_pull(pair, store.home, "auto") for pair in (PAIR, OTHER)]
    hub.chunk_pause = 0.002
    for child in children:
        go(child)
    assert [finished(child) for child in children] == [(0, "")] * 2
    assert hub.served == sum(map(len, BODIES.values()))
    for pair in (PAIR, OTHER):
        assert [path.read_bytes() for path in store.pair_paths(pair) if path] == [
            BODIES[file.file] for file in pair.files
        ]


def test_who_is_killed_leaves_the_shared_file_to_the_other(hub: Hub, store: Store) -> None:
    hub.chunk_pause = 0.002
    doomed = start_pull(make_pair(FILES["draft.gguf"]), store.home, "auto", kill_at=200_000)
    other = start_pull(make_pair(FILES["draft.gguf"]), store.home, "auto")
    go(doomed)
    go(other)
    codes = sorted([finished(doomed)[0], finished(other)[0]])
    # Whoever came first: the doomed one may find the file complete.
    assert codes in ([0, 0], sorted([0, KILLED]))
    recorder = Recorder()
    pull(make_pair(FILES["draft.gguf"]), store=store, progress=recorder)
    assert recorder.phases(FILES["draft.gguf"]) == [("verify", "disk"), ("ready", "disk")]
