"""The store: where files lie, what is refused, what is removed."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import HashMismatch, NotDownloaded, StoreError
from localspec.pairs.catalogue import ModelFile
from localspec.pairs.pair import HubSource, LocalSource
from localspec.store import store as store_module
from localspec.store.copying import hashed
from localspec.store.measurements import Measurements
from localspec.store.prepared import PreparedDrafts
from localspec.store.store import Store
from localspec.system.home import default_home
from localspec.system.progress import Progress, Reporter
from tests.hubkit import content, make_pair, model_file

BODY = {name: content(seed, 3000) for seed, name in enumerate(("target.gguf", "draft.gguf", "other.gguf"))}
FILES = {name: model_file(name, body) for name, body in BODY.items()}
PAIR = make_pair(FILES["target.gguf"], FILES["draft.gguf"])
OTHER = make_pair(FILES["other.gguf"], FILES["draft.gguf"], name="other")


def put(store: Store, file: ModelFile) -> Path:
    """Lays a file into the store as a finished download does."""
    store.prepare()
    path = store.home / "files" / file.sha256 / file.file
    path.parent.mkdir()
    path.write_bytes(BODY[file.file])
    return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(store_module, "pairs", lambda _home: [PAIR, OTHER])
    return Store(tmp_path / "störe 🗄")


def test_home_is_the_environment_variable_or_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "here"))
    assert Store().home == tmp_path / "here"
    monkeypatch.setenv("LOCALSPEC_HOME", "")
    assert Store().home.name == "localspec"
    assert Store(tmp_path).home == tmp_path


def test_a_tilde_is_the_users_folder_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_HOME", "~/models")
    assert Store().home == default_home() == PreparedDrafts(Path("~/models")).home == tmp_path / "models"
    assert Store("~/models").home == tmp_path / "models"  # type: ignore[arg-type]


@pytest.mark.parametrize("home", ["~nosuchuser/x", "", "a\0b", 5, b"x"])
def test_a_home_that_cannot_be_is_named(home: Any) -> None:
    for open_store in (Store, PreparedDrafts):
        with pytest.raises(StoreError, match=r"The home folder .* cannot be used") as caught:
            open_store(home)
        assert repr(home) in caught.value.message
        assert "LOCALSPEC_HOME" in caught.value.remedy


def test_a_home_of_an_unknown_user_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", "~nosuchuser/x")
    with pytest.raises(StoreError, match="'~nosuchuser/x' cannot be used: there is no such user"):
        default_home()


def test_reading_makes_nothing(store: Store) -> None:
    assert store.path(PAIR.target) is None
    assert store.installed() == []
    assert not store.home.exists()


def test_a_complete_pair_is_found(store: Store) -> None:
    target, draft = put(store, PAIR.target), put(store, FILES["draft.gguf"])
    assert store.pair_paths(PAIR) == (target, draft)
    assert target.name == "target.gguf"
    assert store.installed() == [(PAIR, 6000)]


def test_a_pair_without_a_draft(store: Store) -> None:
    target = put(store, PAIR.target)
    assert store.pair_paths(make_pair(PAIR.target)) == (target, None)


def test_what_is_missing_is_named_with_the_command(store: Store) -> None:
    put(store, PAIR.target)
    with pytest.raises(NotDownloaded) as caught:
        store.pair_paths(PAIR)
    assert caught.value.missing == ["draft.gguf"]
    assert "draft.gguf" in caught.value.message
    assert "target.gguf" not in caught.value.message
    assert caught.value.remedy == 'Call `localspec.pull("small")`.'
    assert caught.value.command == "Run `localspec pull small`."


@pytest.mark.parametrize("fetchable", [True, False])
def test_a_file_of_ones_own_that_is_gone_is_lost_only_where_nobody_else_has_it(
    store: Store, tmp_path: Path, fetchable: bool
) -> None:
    put(store, PAIR.target)
    gone = LocalSource(str(tmp_path / "gone.gguf"))
    elsewhere = (HubSource("org/repo", "0" * 40),) if fetchable else ()
    pair = make_pair(PAIR.target, replace(FILES["draft.gguf"], sources=(gone, *elsewhere)))
    with pytest.raises(NotDownloaded if fetchable else StoreError) as caught:
        store.pair_paths(pair)
    assert ("pull" in caught.value.remedy) is fetchable
    assert ("is gone" in caught.value.message) is not fetchable


@pytest.mark.parametrize("size", [0, 2999, 3001])
def test_a_file_of_another_size_is_not_the_file(store: Store, size: int) -> None:
    put(store, PAIR.target).write_bytes(bytes(size))
    assert store.path(PAIR.target) is None


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    assert Store(tmp_path).home == tmp_path
    (tmp_path / "format").write_text("2\n", encoding="utf-8")
    with pytest.raises(StoreError, match=r"format '2'.*Upgrade localspec"):
        Store(tmp_path)


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match="home"):
        Store(tmp_path / "home").prepare()


@pytest.mark.parametrize("own", [True, False])
def test_wrong_bytes_are_removed_unless_they_are_a_users_own_file(
    store: Store, tmp_path: Path, own: bool
) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(BODY["other.gguf"])
    file = replace(FILES["target.gguf"], sources=(LocalSource(str(path)),) if own else ())
    with pytest.raises(HashMismatch):
        store.check(file, path, Reporter(path.name, file.bytes, None))
    assert path.exists() is own
    path.write_bytes(BODY["target.gguf"])
    store.check(file, path, Reporter(path.name, file.bytes, None))
    assert path.exists()


def test_remove_keeps_what_another_complete_pair_needs(store: Store) -> None:
    for file in FILES.values():
        put(store, file)
    assert store.remove(PAIR) == 3000
    assert store.installed() == [(OTHER, 6000)]
    assert store.remove(OTHER) == 6000
    assert list((store.home / "files").iterdir()) == []


def test_remove_does_not_keep_files_for_an_incomplete_pair(store: Store) -> None:
    put(store, PAIR.target)
    put(store, FILES["draft.gguf"])
    assert store.remove(PAIR) == 6000


def test_remove_takes_left_overs_of_a_broken_download(store: Store) -> None:
    store.prepare()
    partial = store.partial(PAIR.target)
    partial.path.write_bytes(bytes(100))
    partial.record("wheels", [100])
    assert store.remove(PAIR) == 100
    assert list((store.home / "partial").iterdir()) == []


def test_remove_of_nothing(store: Store) -> None:
    assert store.remove(PAIR) == 0
    assert not store.home.exists()


def test_a_file_being_fetched_is_not_removed(store: Store) -> None:
    put(store, PAIR.target)
    with store.lock(PAIR.target), pytest.raises(StoreError, match=r"target\.gguf is being downloaded"):
        Store(store.home).remove(PAIR)
    assert store.path(PAIR.target) is not None


@pytest.mark.parametrize(
    "journal", ["", "[]", "{}", '{"origin": "w", "parts": "x"}', '{"origin": "w", "parts": [-1]}']
)
def test_a_damaged_journal_means_from_the_start(store: Store, journal: str) -> None:
    store.prepare()
    partial = store.partial(PAIR.target)
    partial.path.write_bytes(bytes(100))
    partial.path.with_suffix(".json").write_text(journal, encoding="utf-8")
    assert partial.parts("w") == []
    assert partial.size == 0


def test_a_journal_counts_only_for_its_own_wheels(store: Store) -> None:
    store.prepare()
    partial = store.partial(PAIR.target)
    partial.path.write_bytes(bytes(100))
    partial.record("w==1", [40, 50])
    assert partial.parts("w==1") == [40, 50]
    assert partial.size == 90
    assert partial.parts("w==2") == []


@pytest.mark.parametrize("change", ["bytes of the same length", "length", "nothing"])
def test_a_file_that_changes_while_it_is_hashed_has_no_hash(tmp_path: Path, change: str) -> None:
    path = tmp_path / "growing.gguf"
    path.write_bytes(b"a" * 3000)

    def meanwhile(_progress: Progress) -> None:
        if change != "nothing":
            path.write_bytes(b"b" * (3000 if "same" in change else 3001))
            os.utime(path, ns=(1, 1))

    report = Reporter(path.name, 3000, meanwhile)
    if change == "nothing":
        assert hashed(path, report) == hashlib.sha256(b"a" * 3000).hexdigest()
    else:
        with pytest.raises(StoreError, match="is being changed"):
            hashed(path, report)


@pytest.mark.parametrize("other", [1, 3])
def test_what_was_measured_in_another_format_is_measured_again(tmp_path: Path, other: int) -> None:
    facts: dict[str, object] = {"machine": "this one", "threads": 2}
    Measurements(tmp_path, other).keep(facts, {"seconds": 1})
    assert Measurements(tmp_path, 2).find(facts) is None and list(Measurements(tmp_path, 2)) == []
    Measurements(tmp_path, 2).keep(facts, {"seconds": 2})
    assert (Measurements(tmp_path, 2).find(facts) or {})["seconds"] == 2
    assert Measurements(tmp_path, 2).find({**facts, "threads": 3}) is None
    assert Measurements(tmp_path, other).find(facts) is None


def test_what_no_disk_takes_is_remembered_by_the_process(tmp_path: Path) -> None:
    folder = tmp_path / "full" / "kept"
    folder.parent.write_text("no folder can be made here", encoding="utf-8")
    facts: dict[str, object] = {"machine": "this one"}
    kept = Measurements(folder, 1)
    kept.keep(facts, {"seconds": 1})
    kept.keep(facts, {"seconds": 2})
    assert (kept.find(facts) or {})["seconds"] == 2 and [one.facts for one in kept] == [facts]
    assert kept.find({**facts, "threads": 3}) is None
    assert Measurements(folder, 2).find(facts) is None and list(Measurements(tmp_path, 1)) == []
    kept.forget(facts)
    assert kept.find(facts) is None and list(kept) == []
    kept.keep(facts, {"seconds": 3})
    folder.parent.unlink()
    kept.keep(facts, {"seconds": 4})
    assert (kept.find(facts) or {})["seconds"] == 4 and len(list(kept)) == 1
    (only,) = folder.iterdir()
    only.unlink()
    assert kept.find(facts) is None
