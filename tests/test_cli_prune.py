"""`localspec prune`: what nothing needs goes, what may be needed stays."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from localspec.cli import prune
from localspec.pairs.pair import LocalSource
from localspec.pairs.pins import Pins, hub_model, pinned_pair
from localspec.store.own import keep_pair
from localspec.store.pruning import LOCK_AGE, left_overs
from tests.hubkit import REVISION
from tests.storekit import Shelf, listing, run

UNKNOWN = "f0" * 32


def old(path: Path) -> Path:
    past = time.time() - LOCK_AGE - 60
    os.utime(path, (past, past))
    return path


def put(path: Path, size: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def reasons(shelf: Shelf) -> dict[str, str]:
    return {item.path.name: item.reason for item in left_overs(shelf.store)}


def test_nothing_to_remove(shelf: Shelf) -> None:
    assert run("prune").stdout == "Nothing to remove.\n"
    assert not shelf.home.exists()
    shelf.fill()
    shelf.prepare_draft()
    before = listing(shelf.home)
    assert run("prune").stdout == "Nothing to remove.\n"
    assert listing(shelf.home) == before


def test_partial_files_that_nothing_can_go_on_from(shelf: Shelf) -> None:
    shelf.fill(draft=False)
    partial = shelf.home / "partial"
    complete = put(partial / f"{shelf.pair.target.sha256}.part")
    unknown = put(partial / f"{UNKNOWN}.part")
    wheels = put(partial / f"{UNKNOWN}.wheels" / "x.whl").parent
    begun = put(partial / f"{shelf.pair.files[1].sha256}.part")
    result = run("prune")
    assert result.stdout.splitlines()[-1] == "3 kB freed."
    assert f"{complete}: a partial file whose file is complete, 1 kB" in result.stdout
    assert f"{unknown}: a partial file that no pair needs, 1 kB" in result.stdout
    assert not any(path.exists() for path in (complete, unknown, wheels))
    assert begun.exists()


def test_what_other_links_keep_is_not_claimed(shelf: Shelf, tmp_path: Path) -> None:
    shelf.store.prepare()
    unknown = put(shelf.home / "partial" / f"{UNKNOWN}.part")
    (tmp_path / "original").hardlink_to(unknown)
    assert run("prune").stdout.splitlines()[-1] == "0 bytes freed."
    assert not unknown.exists()


def test_a_partial_that_is_being_fetched_stays(shelf: Shelf) -> None:
    shelf.store.prepare()
    unknown = put(shelf.home / "partial" / f"{UNKNOWN}.part")
    with FileLock(shelf.home / "locks" / f"{UNKNOWN}.lock"):
        result = run("prune")
    assert (result.exit_code, result.stdout) == (0, "Nothing to remove.\n")
    assert f"{unknown} stays: another process is at work on it." in result.stderr
    assert unknown.exists()


def test_what_was_pinned_by_name_is_known(shelf: Shelf) -> None:
    shelf.store.prepare()
    whole = hub_model("some/repo", REVISION, [("some.gguf", 1000, UNKNOWN)])
    names = [f"x-0000{i}-of-00002.gguf" for i in (1, 2)]
    split = hub_model("some/repo", REVISION, [(name, 1000, str(i) * 64) for i, name in enumerate(names)])
    places = [put(shelf.store.place_of(piece)) for file in (whole, split) for piece in file.pieces]
    put(shelf.home / "partial" / f"{UNKNOWN}.part")
    put(shelf.home / "partial" / f"{'0' * 64}.part")
    assert set(reasons(shelf).values()) == {
        "a partial file whose file is complete", "a partial file that no pair needs", "a model of no known pair",
    }  # fmt: skip
    for name, file in (("some/repo:F32", whole), ("some/repo:Q8_0", split)):
        Pins(shelf.home).put(pinned_pair(name, "MIT", file))
    assert reasons(shelf) == {
        f"{UNKNOWN}.part": "a partial file whose file is complete",
        f"{'0' * 64}.part": "a partial file whose file is complete",
    }
    for name in ("some/repo:F32", "some/repo:Q8_0"):
        Pins(shelf.home).remove(name)
    assert run("prune", "-y").exit_code == 0
    assert not any(place.parent.exists() for place in places)


@pytest.mark.parametrize("place", ["pairs/mine.toml", "references/some.json"])
def test_where_a_pair_cannot_be_read_its_models_stay(shelf: Shelf, place: str) -> None:
    """Nobody knows then which models of no known pair are its own."""
    shelf.store.prepare()
    kept = [
        put(shelf.home / "files" / UNKNOWN / "some.gguf"),
        put(shelf.home / "partial" / f"{'0' * 64}.part"),
    ]
    broken = put(shelf.home / place)
    result = run("prune", "-y")
    assert (result.exit_code, result.stdout) == (0, "Nothing to remove.\n")
    assert "stay: not every pair can be read" in result.stderr and broken.name in result.stderr
    assert all(path.exists() for path in kept)
    broken.unlink()
    assert run("prune", "-y").exit_code == 0
    assert not any(path.exists() for path in kept)


def test_prepared_drafts_without_their_draft(shelf: Shelf) -> None:
    draft = shelf.fill()[1]
    copy = shelf.prepare_draft(bytes(5000))
    assert left_overs(shelf.store) == []
    draft.unlink()
    result = run("prune")
    assert f"{copy.parent}: a prepared draft whose draft is gone, " in result.stdout
    assert not copy.parent.exists()


def test_a_prepared_draft_of_a_changed_file_of_ones_own(shelf: Shelf) -> None:
    own = shelf.originals[1]
    lonely = replace(
        shelf.pair, name="mine", draft=replace(shelf.pair.files[1], sources=(LocalSource(str(own)),))
    )
    keep_pair(lonely, shelf.store)
    shelf.fill(draft=False)
    copy = replace(shelf, pair=lonely).prepare_draft(bytes(5000))
    assert left_overs(shelf.store) == []
    own.write_bytes(b"changed")
    assert reasons(shelf) == {copy.parent.name: "a prepared draft whose draft is gone"}


def test_a_prepared_draft_without_a_record(shelf: Shelf) -> None:
    shelf.fill()
    copy = shelf.prepare_draft()
    (copy.parent / "record.json").write_text("{", encoding="utf-8")
    assert reasons(shelf) == {copy.parent.name: "a prepared draft without a record"}
    with FileLock(shelf.home / "locks" / f"prepared-{copy.parent.name}.lock"):
        assert "another process" in run("prune").stderr
    assert copy.exists()


def test_stale_locks(shelf: Shelf) -> None:
    shelf.store.prepare()
    locks = shelf.home / "locks"
    stale, fresh, held = (put(locks / f"{name}.lock", 0) for name in ("stale", "fresh", "held"))
    old(stale), old(held)
    with FileLock(held):
        old(held)
        result = run("prune")
    assert not stale.exists()
    assert fresh.exists() and held.exists()
    assert f"{held} stays: another process" in result.stderr


def test_small_files_that_a_killed_process_left(shelf: Shelf) -> None:
    shelf.store.prepare()
    folders = ("calibration", "strict", "used")
    for name in folders:
        old(put(shelf.home / name / "x.1.part"))
        old(put(shelf.home / name / "x.json.new"))
        put(shelf.home / name / "y.2.part")
        put(shelf.home / name / "z.json")
    put(shelf.home / "damaged" / "x.gguf")
    run("prune")
    left = {str(path.relative_to(shelf.home)) for path in shelf.home.rglob("*") if path.is_file()}
    assert {name for name in left if not name.startswith(("format", "locks"))} == {
        str(Path(folder) / name) for folder in folders for name in ("y.2.part", "z.json")
    }


@pytest.mark.parametrize(
    ("arguments", "answer", "removed"),
    [
        ([], None, False),
        (["-y"], None, True),
        ([], "n\n", False),
        ([], "y\n", True),
        (["--json"], "y\n", False),
    ],
)
def test_whole_models_of_no_pair_are_asked_for(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, arguments: list[str], answer: str | None, removed: bool
) -> None:
    shelf.store.prepare()
    whole = put(shelf.home / "files" / UNKNOWN / "some.gguf")
    monkeypatch.setattr(prune, "can_ask", lambda: answer is not None)
    result = run("prune", *arguments, stdin=answer or "")
    assert result.exit_code == 0
    assert whole.exists() is not removed
    assert whole.parent.exists() is not removed
    if not removed:
        assert f"{whole.parent} stays: it is a model of no known pair, 1 kB." in result.stderr


def test_a_dry_run_changes_nothing(shelf: Shelf) -> None:
    shelf.store.prepare()
    put(shelf.home / "files" / UNKNOWN / "some.gguf")
    put(shelf.home / "partial" / f"{UNKNOWN}.wheels" / "a.whl")
    (shelf.home / "files" / ("e" * 64)).mkdir()
    before = listing(shelf.home)
    result = run("prune", "--dry-run")
    assert result.stdout.splitlines()[-1] == "2 kB would be freed."
    facts = json.loads(run("prune", "--dry-run", "--json").stdout)
    assert (facts["removed"], len(facts["would_remove"])) == ([], 3)
    assert listing(shelf.home) == before
    removed = json.loads(run("prune", "-y", "--json").stdout)["removed"]
    assert removed == facts["would_remove"]
    assert list((shelf.home / "files").iterdir()) == []
