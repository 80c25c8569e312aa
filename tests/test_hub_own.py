"""Pairs of one's own: files in the form of the built-in ones, read and written; faults named, nothing hidden."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import CatalogueError, InvalidRequest, StoreError, UnknownPair
from localspec.pairs import catalogue
from localspec.pairs.catalogue import DEFAULT_PAIR, own_folder, own_path, pair, pairs, warnings
from localspec.pairs.pair import LocalSource, ModelFile, Pair, WheelSource
from localspec.pairs.pairfile import line_of, read_pair
from localspec.pairs.pairtext import pair_text
from localspec.store.own import check_name, file_name, forget_pair, keep_pair
from localspec.store.store import Store
from tests.hubkit import HUB
from tests.storekit import Shelf

BUILT_IN = [path.stem for path in (Path(__file__).parents[1] / "models").glob("*.toml")]


def renamed(shelf: Shelf, name: str) -> Pair:
    return replace(shelf.pair, name=name)


def keep_text(shelf: Shelf, name: str, text: str) -> Path:
    folder = own_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


# Reading and writing


def test_every_built_in_pair_is_written_as_it_was_read() -> None:
    for found in pairs():
        assert read_pair(pair_text(found), f"{found.name}.toml") == found


def test_every_character_survives(tmp_path: Path) -> None:
    hard = 'a "b" \\ c \x7f \x01 \t é 模型 🗄 \u2028'
    local = LocalSource(str(tmp_path / "dir 'x' \"y\"" / "模型 v2.gguf"))
    wheels = WheelSource("p{i}", "1.0", 2, "p{i}/d.bin")
    target = ModelFile("模型 v2.gguf", 5, "a" * 64, (local, HUB, wheels))
    for draft in (None, replace(target, file="d.gguf")):
        made = Pair("hard", hard, "Gemma's \\terms", 8, (hard, ""), target, draft)
        assert read_pair(pair_text(made), str(tmp_path / "hard.toml")) == made


def test_a_relative_path_counts_from_the_pair_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for given, meant in (("x.gguf", tmp_path / "org" / "x.gguf"), ("~/x.gguf", tmp_path / "x.gguf")):
        made = Pair("p", "s", "MIT", 8, (), ModelFile("x.gguf", 5, "a" * 64, (LocalSource(given),)), None)
        assert read_pair(pair_text(made), str(tmp_path / "org" / "p.toml")).target.local_paths == (meant,)


@pytest.mark.parametrize("path", ["~nosuchuser/x.gguf", "a\0b"])
def test_a_path_that_cannot_be_is_named(tmp_path: Path, path: str) -> None:
    made = Pair("p", "s", "MIT", 8, (), ModelFile("x.gguf", 5, "a" * 64, (LocalSource(path),)), None)
    with pytest.raises(
        CatalogueError, match=r"p\.toml, line 14, cannot be used: target\.source\[0\]\.path is"
    ):
        read_pair(pair_text(made), str(tmp_path / "p.toml"))


@pytest.mark.parametrize(
    "name",
    ["../x.gguf", "a/b.gguf", "a\\b.gguf", ".x.gguf", "-x.gguf", "a:b.gguf", "a\nb.gguf", "x.bin", ".gguf"],
)
def test_file_names_that_lead_elsewhere_are_refused(name: str) -> None:
    made = Pair("p", "s", "MIT", 8, (), ModelFile(name, 5, "a" * 64, (HUB,)), None)
    with pytest.raises(CatalogueError, match=r"p\.toml, line 8, cannot be used: target\.file is"):
        read_pair(pair_text(made), "p.toml")
    assert read_pair(
        pair_text(replace(made, target=replace(made.target, file=file_name(Path(name))))), "p.toml"
    )


@pytest.mark.parametrize("name", ["con.gguf", "COM1.gguf", "nul.x.gguf"])
def test_file_names_that_are_devices_get_another(name: str) -> None:
    assert file_name(Path(name)) == f"model-{name}"
    assert file_name(Path("模型 v2.gguf")) == "模型 v2.gguf"


def test_the_line_of_a_field(shelf: Shelf) -> None:
    text = pair_text(shelf.pair)
    lines = text.splitlines()
    assert lines[line_of(text, "licence") - 1] == 'licence = "MIT"'
    assert lines[line_of(text, "draft.bytes") - 1] == f"bytes = {shelf.pair.files[1].bytes}"
    assert lines[line_of(text, "draft.source[0].repo") - 1].startswith("repo = ")
    assert lines[line_of(text, "draft.missing") - 1] == "[draft]"
    assert line_of(text, "missing") == 1


# The catalogue


def test_pairs_of_the_users_and_of_the_organisation_come_after_the_built_in_ones(shelf: Shelf) -> None:
    keep_text(shelf, "mine", pair_text(renamed(shelf, "mine")))
    names = [found.name for found in pairs()]
    assert names[0] == DEFAULT_PAIR
    assert names[-2:] == ["mine", "tiny"]
    assert sorted(names) == sorted([*BUILT_IN, "mine", "tiny"])
    assert (pair("mine").name, pair("tiny")) == ("mine", shelf.pair)
    assert (own_path("mine"), own_path(DEFAULT_PAIR)) == (own_folder() / "mine.toml", None)
    assert warnings() == []


def test_a_close_name_of_ones_own_is_proposed(shelf: Shelf) -> None:
    with pytest.raises(UnknownPair) as caught:
        pair("tinny")
    assert "Did you mean 'tiny'?" in caught.value.remedy


def test_several_folders(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (second := tmp_path / "second é").mkdir()
    (second / "other.toml").write_text(pair_text(renamed(shelf, "other")), encoding="utf-8")
    (second / "._other.toml").write_bytes(b"\0\xff")
    monkeypatch.setenv("LOCALSPEC_PAIRS", os.pathsep.join([str(shelf.org), "", str(second)]))
    assert [found.name for found in pairs()][-2:] == ["tiny", "other"]
    assert warnings() == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name =", "is not valid TOML: Invalid value (at line 1, the end of the file)."),
        ("name = 'x'\n\nsummary\n", "is not valid TOML: "),
        ('name = "broken"\nsummary = 4\n', ", line 2, cannot be used: summary must be a string"),
        ('name = "another"\n', ", line 1, cannot be used: summary is missing."),
    ],
)
def test_a_broken_pair_file_breaks_no_other(shelf: Shelf, text: str, complaint: str) -> None:
    path = keep_text(shelf, "broken", text)
    assert {found.name for found in pairs()} == {*BUILT_IN, "tiny"}
    assert pair("tiny") == shelf.pair
    (sentence,) = warnings()
    assert sentence.startswith(f"The pair file {path}")
    assert complaint in sentence
    assert warnings("tiny") == []
    with pytest.raises(CatalogueError) as caught:
        pair("broken")
    assert (caught.value.message, caught.value.remedy) == (sentence, "Correct the file, or remove it.")


def test_a_file_that_is_not_text_breaks_no_other(shelf: Shelf) -> None:
    (shelf.org / "broken.toml").write_bytes(b"\xff\xfe")
    assert pair("tiny") == shelf.pair
    (sentence,) = warnings()
    assert "broken.toml cannot be read" in sentence


def test_a_built_in_pair_is_never_replaced_in_silence(shelf: Shelf) -> None:
    path = shelf.know(renamed(shelf, DEFAULT_PAIR))
    assert pair(DEFAULT_PAIR).bytes > 1e9
    assert [found.name for found in pairs()].count(DEFAULT_PAIR) == 1
    expected = [f"The pair file {path} is not used: another pair named {DEFAULT_PAIR} is built in."]
    assert warnings() == warnings(DEFAULT_PAIR) == expected


def test_the_users_own_pair_comes_before_the_organisations(shelf: Shelf) -> None:
    mine = keep_text(shelf, "tiny", pair_text(replace(shelf.pair, summary="Mine")))
    assert pair("tiny").summary == "Mine"
    assert warnings() == [
        f"The pair file {shelf.org / 'tiny.toml'} is not used: another pair named tiny is in {mine}."
    ]


@pytest.mark.parametrize("folder", ["no-such-folder", "~nosuchuser/x", "file"])
def test_a_folder_that_cannot_be_read_is_named(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("LOCALSPEC_PAIRS", os.pathsep.join([folder, str(shelf.org)]))
    assert pair("tiny") == shelf.pair
    (sentence,) = warnings()
    assert folder in sentence and "cannot be read" in sentence


# Adding and forgetting


def test_a_pair_is_kept_and_forgotten(shelf: Shelf) -> None:
    path = keep_pair(renamed(shelf, "mine"), shelf.store)
    assert path == own_folder() / "mine.toml"
    assert pair("mine") == renamed(shelf, "mine")
    assert keep_pair(renamed(shelf, "mine"), shelf.store) == path  # the very same again
    assert forget_pair("mine", shelf.store) == path
    assert forget_pair("tiny", shelf.store) is None  # the organisation's
    assert (forget_pair(DEFAULT_PAIR, shelf.store), pair("tiny")) == (None, shelf.pair)
    with pytest.raises(UnknownPair):
        pair("mine")


@pytest.mark.parametrize("name", ["tiny", DEFAULT_PAIR])
def test_a_name_that_is_taken_is_refused(shelf: Shelf, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"There is a pair named {name} already"):
        keep_pair(replace(renamed(shelf, name), summary="Another"), shelf.store)


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "", ".", "Big", "modèle", "con", "lpt1", "nul.v2", "a b", "-x", "x\n", "a\\b"]
)
def test_a_name_that_cannot_be_is_refused(shelf: Shelf, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_name(name, shelf.store)
    assert repr(name) in caught.value.message
    assert not shelf.home.exists()


def test_a_path_that_is_no_text_is_refused(shelf: Shelf) -> None:
    target = replace(shelf.pair.target, sources=(LocalSource("/models/\udcff.gguf"),))
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        keep_pair(replace(renamed(shelf, "mine"), target=target), shelf.store)
    assert not own_folder().exists()


def test_a_store_that_cannot_be_written_says_so(shelf: Shelf) -> None:
    shelf.home.write_text("", encoding="utf-8")
    with pytest.raises(StoreError):
        Store().prepare()


def test_reading_makes_nothing(shelf: Shelf) -> None:
    assert (len(pairs()), warnings()) == (len(BUILT_IN) + 1, [])
    assert catalogue.own_path("tiny") == shelf.org / "tiny.toml"
    assert not shelf.home.exists()
