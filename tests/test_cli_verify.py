"""`localspec verify`: damage is found, named with its remedy, and moved only with the user's yes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.cli import verify
from localspec.pairs.pair import LocalSource
from localspec.store.own import keep_pair
from tests.storekit import Shelf, listing, run


def damage(path: Path) -> None:
    """Changes one byte in the middle, as a dying disk does."""
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


def test_whole_files_pass(shelf: Shelf) -> None:
    shelf.fill()
    result = run("verify")
    assert (result.exit_code, result.stdout) == (0, "2 files checked, 0 damaged.\n")
    assert "tiny-target.gguf verify (disk): " in result.stderr
    quiet = run("verify", "tiny", "-q", "--json")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    facts = json.loads(quiet.stdout)
    assert (facts["damaged"], facts["missing"]) == (0, [])
    assert [(file["ok"], file["pairs"]) for file in facts["files"]] == [(True, ["tiny"])] * 2


def test_an_empty_store_has_nothing_to_verify(shelf: Shelf) -> None:
    result = run("verify")
    assert (result.exit_code, result.stdout) == (0, "No model file is on this disk.\n")
    assert not shelf.home.exists()


def test_a_damaged_file_is_named_and_left(shelf: Shelf) -> None:
    _, place = shelf.fill()
    damage(place)
    before = listing(shelf.home)
    result = run("verify", "-q")
    assert (result.exit_code, result.stdout) == (1, "2 files checked, 1 damaged.\n")
    assert f"{place} is damaged: its sha256 is " in result.stderr
    assert result.stderr.endswith("Run `localspec pull tiny`.\n")
    assert listing(shelf.home) == before
    (entry,) = [file for file in json.loads(run("verify", "--json").stdout)["files"] if not file["ok"]]
    assert (entry["path"], entry["moved_to"]) == (str(place), None)


def test_a_truncated_file_is_damaged_and_not_missing(shelf: Shelf) -> None:
    place = shelf.fill()[0]
    place.write_bytes(place.read_bytes()[:-1])
    result = run("verify", "tiny", "-q")
    assert (result.exit_code, result.stdout) == (1, "2 files checked, 1 damaged.\n")
    size = shelf.pair.target.bytes
    assert f"({size - 1}, not {size} bytes)" in result.stderr


def test_a_missing_file_of_the_pair_asked_for(shelf: Shelf) -> None:
    shelf.fill(draft=False)
    assert run("verify").exit_code == 0
    result = run("verify", "tiny", "-q")
    assert (result.exit_code, result.stdout) == (1, "1 file checked, 0 damaged, 1 missing.\n")
    assert result.stderr == (
        "tiny-draft.gguf of the pair tiny is not on this disk.\nRun `localspec pull tiny`.\n"
    )


@pytest.mark.parametrize(("answer", "moved"), [("n\n", False), ("\n", False), ("", False), ("y\n", True)])
def test_a_terminal_is_asked(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, answer: str, moved: bool) -> None:
    place = shelf.fill()[0]
    damage(place)
    body = place.read_bytes()
    monkeypatch.setattr(verify, "can_ask", lambda: True)
    result = run("verify", "-q", stdin=answer)
    assert result.exit_code == 1
    assert "Move tiny-target.gguf out of the way? [y/N]" in result.stderr
    assert place.exists() is not moved
    if moved:
        (aside,) = (shelf.home / "damaged").iterdir()
        assert aside.read_bytes() == body
        assert f"It was moved to {aside}." in result.stderr


def test_yes_moves_without_asking(shelf: Shelf) -> None:
    place = shelf.fill()[0]
    damage(place)
    facts = json.loads(run("verify", "tiny", "-y", "--json").stdout)
    (entry,) = [file for file in facts["files"] if not file["ok"]]
    assert Path(entry["moved_to"]).is_file() and not place.exists()
    assert run("verify", "-q").stdout == "1 file checked, 0 damaged.\n"


def test_a_file_of_no_pair_is_checked_against_its_name(shelf: Shelf) -> None:
    place = shelf.fill()[0]
    (shelf.org / "tiny.toml").unlink()
    assert run("verify", "-q").stdout == "2 files checked, 0 damaged.\n"
    damage(place)
    result = run("verify", "-q")
    assert result.exit_code == 1
    assert "No known pair needs it: `localspec prune` removes it." in result.stderr


def test_a_file_of_ones_own_is_never_moved(shelf: Shelf) -> None:
    original = shelf.originals[0]
    target = replace(shelf.pair.target, sources=(LocalSource(str(original)),))
    keep_pair(replace(shelf.pair, name="mine", target=target, draft=None), shelf.store)
    assert run("verify", "mine", "-q").stdout == "1 file checked, 0 damaged.\n"
    damage(original)
    result = run("verify", "mine", "-q", "-y")
    assert result.exit_code == 1
    assert f"{original} is damaged" in result.stderr
    assert "Put back the file that was added" in result.stderr
    assert original.is_file()


def test_unknown_pairs_are_named(shelf: Shelf) -> None:
    assert "There is no pair named 'nobody'" in run("verify", "nobody").stderr
