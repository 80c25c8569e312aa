"""`localspec import`: files downloaded elsewhere, known ones and one's own."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import LLM, memory_needed
from localspec.errors import DiskFull
from localspec.pairs.catalogue import own_folder, pair
from localspec.pairs.pair import LocalSource
from localspec.store import importing
from localspec.system import disk
from localspec.system.progress import readable
from tests.storekit import Shelf, listing, run, start
from tests.tinygguf import write_llama, write_mamba, write_stranger


@pytest.fixture(params=["links", "copies"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the disk can make hard links."""
    if request.param == "copies":
        monkeypatch.delattr(os, "link")
    return bool(request.param == "links")


def held(shelf: Shelf) -> list[bytes]:
    return [path.read_bytes() for path in shelf.store.pair_paths(shelf.pair) if path is not None]


def test_files_of_a_known_pair_are_recognised(shelf: Shelf, links: bool) -> None:
    before = listing(shelf.elsewhere)
    anything = [path.rename(path.with_name(f"{index} ü.bin")) for index, path in enumerate(shelf.originals)]
    result = run("import", *reversed(anything))
    assert (result.exit_code, "verify (disk)" in result.stderr) == (0, True)
    target, draft = shelf.store.pair_paths(shelf.pair)
    assert draft is not None
    assert result.stdout.splitlines() == [f"1 ü.bin is now {draft}", f"0 ü.bin is now {target}"]
    assert target.samefile(anything[0]) is links
    assert held(shelf) == [path.read_bytes() for path in anything]
    assert list((shelf.home / "partial").iterdir()) == []
    for path, place in zip(anything, shelf.originals, strict=True):
        path.rename(place)
    assert listing(shelf.elsewhere) == before
    assert run("verify", "tiny", "-q").exit_code == 0


def test_the_originals_outlive_the_store(shelf: Shelf) -> None:
    bodies = [path.read_bytes() for path in shelf.originals]
    run("import", "-q", *shelf.originals)
    assert run("rm", "tiny", "-y").exit_code == 0
    assert [path.read_bytes() for path in shelf.originals] == bodies


def test_rm_claims_no_bytes_that_the_originals_keep(shelf: Shelf, links: bool) -> None:
    run("import", "-q", *shelf.originals)
    size = readable(shelf.pair.bytes)
    removed = run("rm", "tiny", "-y").stdout
    kept = f"0 bytes freed; {size} stay in use, because the same files have other names too."
    assert removed == f"Removed tiny, {kept if links else f'{size} freed.'}\n"
    assert run("rm", "tiny", "-y").stdout == "Nothing of tiny was here.\n"


def test_importing_twice_is_importing_once(shelf: Shelf, links: bool) -> None:
    first = run("import", "-q", *shelf.originals)
    before = listing(shelf.home / "files")
    assert run("import", "-q", *shelf.originals).stdout == first.stdout
    assert listing(shelf.home / "files") == before


def test_a_link_to_a_file_counts_as_the_file(shelf: Shelf, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(shelf.originals[0])
    assert run("import", "-q", link).exit_code == 0
    place = shelf.store.path(shelf.pair.target)
    assert place is not None and not place.is_symlink()


def test_a_copy_goes_on_from_what_a_download_left(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "link")
    shelf.store.prepare()
    body = shelf.originals[0].read_bytes()
    shelf.store.partial(shelf.pair.target).path.write_bytes(body[:1000])
    copied: list[int] = []
    real = importing.append

    def append(source: Path, partial: Path, report: object) -> None:
        copied.append(source.stat().st_size - (partial.stat().st_size if partial.exists() else 0))
        real(source, partial, report)  # type: ignore[arg-type]

    monkeypatch.setattr(importing, "append", append)
    assert run("import", "-q", shelf.originals[0]).exit_code == 0
    assert copied == [len(body) - 1000]
    assert held(replace(shelf, pair=replace(shelf.pair, draft=None))) == [body]


def test_a_copy_does_not_trust_what_a_download_left(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "link")
    shelf.store.prepare()
    shelf.store.partial(shelf.pair.target).path.write_bytes(b"x" * 1000)
    assert run("import", "-q", *shelf.originals).exit_code == 0
    assert held(shelf) == [path.read_bytes() for path in shelf.originals]


def test_a_copy_that_does_not_fit_is_refused_first(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, needed: int) -> None:
        assert needed == shelf.pair.target.bytes
        raise DiskFull("No room.", "Make some.", path=str(folder), needed=needed, free=0)

    monkeypatch.delattr(os, "link")
    monkeypatch.setattr(importing, "require_room", full)
    result = run("import", "-q", shelf.originals[0])
    assert (result.exit_code, result.stderr) == (1, "error: No room.\nMake some.\n")


def test_an_unknown_file_is_named_and_the_known_ones_are_taken(shelf: Shelf, tmp_path: Path) -> None:
    unknown = write_llama(tmp_path / "mine.gguf", seed=5)
    result = run("import", "-q", unknown, shelf.originals[0])
    assert result.exit_code == 1
    assert (
        f"{unknown} is no file of a known pair.\nGive it a pair of its own with --name NAME.\n"
        in result.stderr
    )
    assert shelf.store.path(shelf.pair.target) is not None
    facts = json.loads(run("import", "-q", "--json", unknown, shelf.originals[0]).stdout)
    assert facts["unknown"] == [str(unknown)]
    assert [entry["file"] for entry in facts["files"]] == [str(shelf.originals[0])]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"some text\n", "is not a GGUF file: it looks like a text file"),
        (b"", "is empty"),
        (b"GGUF", "is not a usable GGUF file"),
    ],
)
def test_what_is_no_model_gets_no_advice_to_name_it(
    shelf: Shelf, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "mine.gguf").write_bytes(content)
    result = run("import", "-q", tmp_path / "mine.gguf", shelf.originals[0])
    assert (result.exit_code, words in result.stderr, "--name" in result.stderr) == (1, True, False)
    assert shelf.store.path(shelf.pair.target) is not None


def test_the_home_folder_in_a_path(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quoted, or on a system whose shell does not know it; what the API and the other commands take too."""
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(shelf.elsewhere))
    target, draft = (f"~/{path.name}" for path in shelf.originals)
    assert memory_needed(target, draft, n_ctx=64).weights == shelf.pair.bytes
    assert run("check", target, draft).exit_code == 0
    assert run("suggest", target, "--offline").exit_code == 0
    assert run("add", "mine", "-m", target, "-q").exit_code == 0
    assert pair("mine").target.local_paths == (shelf.originals[0],)
    assert run("import", "-q", target, draft).exit_code == 0
    assert run("export", "tiny", "~/out", "-q").exit_code == 0
    assert (shelf.elsewhere / "out" / shelf.pair.target.file).is_file()


def test_a_damaged_file_is_not_the_file(shelf: Shelf) -> None:
    body = bytearray(shelf.originals[0].read_bytes())
    body[-1] ^= 1
    shelf.originals[0].write_bytes(body)
    result = run("import", "-q", shelf.originals[0])
    assert (result.exit_code, "is no file of a known pair" in result.stderr) == (1, True)
    assert not (shelf.home / "files").exists()


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("no-such.gguf", "no-such.gguf does not exist."),
        (".", ". is a folder."),
        ("a\udcff", "does not exist"),
    ],
)
def test_what_is_no_file_is_named(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, file: str, complaint: str
) -> None:
    monkeypatch.chdir(shelf.elsewhere)
    result = run("import", "-q", shelf.originals[0], file)
    assert (result.exit_code, complaint in result.stderr) == (1, True)
    assert not shelf.home.exists()  # nothing is taken where the command was wrong


# With --name


def test_a_pair_of_ones_own(shelf: Shelf, tmp_path: Path, links: bool) -> None:
    target = write_llama(tmp_path / "my target é.gguf", seed=5, extra={"general.license": "apache-2.0"})
    draft = write_llama(tmp_path / "my draft.bin", seed=5, noise=0.05)
    result = run("import", "--name", "mine", target, draft)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "mine is ready: localspec chat mine"
    made = pair("mine")
    assert (made.licence, made.context, made.tags) == ("apache-2.0", 512, ())
    assert made.summary == "my target é with my draft as its draft"
    assert [file.file for file in made.files] == ["my target é.gguf", "model-my-draft.bin.gguf"]
    assert [file.local_paths for file in made.files] == [(target,), (draft,)]
    target.unlink(), draft.unlink()
    with LLM.from_pair("mine", home=shelf.home, draft_tokens=2, n_ctx=128) as llm:
        assert llm.generate("a", max_tokens=4).finish_reason == "length"
    assert run("rm", "mine", "-y").stdout.startswith("Removed mine, ")
    assert not (own_folder() / "mine.toml").exists()
    assert list((shelf.home / "files").iterdir()) == []


def test_a_target_alone(shelf: Shelf, tmp_path: Path) -> None:
    target = write_mamba(tmp_path / "mamba.gguf")
    arguments = ("import", "-q", "--name", "lonely", target, "--licence", "MIT", "--summary", "One  \n line")
    assert run(*arguments).exit_code == 0
    made = pair("lonely")
    assert (made.draft, made.licence, made.summary) == (None, "MIT", "One line")
    assert run(*arguments).exit_code == 1  # the name is taken


def test_a_known_file_keeps_its_sources_and_its_place(shelf: Shelf) -> None:
    shelf.fill()
    before = listing(shelf.home / "files")
    copy = shelf.originals[0].rename(shelf.elsewhere / "copy.gguf")
    assert run("import", "-q", "--name", "mine", copy).exit_code == 0
    (local, *others) = pair("mine").target.sources
    assert (local, tuple(others)) == (LocalSource(str(copy)), shelf.pair.target.sources)
    assert listing(shelf.home / "files") == before


def test_a_draft_that_does_not_fit_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    other = write_stranger(tmp_path / "other.gguf")
    result = run("import", "--name", "mine", shelf.originals[0], other)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: other.gguf cannot draft for tiny-target.gguf: their vocabularies")
    assert not shelf.home.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--name", "../x"], 1, "A pair cannot be named '../x'."),
        (["--name", "tiny"], 1, "There is a pair named tiny already"),
        (["--name", "x", "a.gguf", "b.gguf"], 2, "--name takes one or two files"),
        (["--summary", "x"], 2, "--summary and --licence go with --name"),
        (["--name", "x", "no-such.gguf"], 1, "There is no file no-such.gguf."),
        ([""], 2, "The name of a file is empty."),
    ],
)
def test_wrong_usage(shelf: Shelf, arguments: list[str], code: int, complaint: str) -> None:
    result = run("import", shelf.originals[0], *arguments)
    assert (result.exit_code, complaint in result.stderr) == (code, True), result.stderr
    assert not shelf.home.exists()


def test_the_same_file_twice_is_no_pair(shelf: Shelf) -> None:
    result = run("import", "--name", "mine", shelf.originals[0], shelf.originals[0])
    assert (result.exit_code, "is given twice" in result.stderr) == (1, True)


def test_a_split_model_comes_whole(shelf: Shelf, tmp_path: Path, links: bool) -> None:
    (folder := tmp_path / "split").mkdir()
    first = write_llama(folder / "mine.gguf", seed=5, per_part=8)
    parts = sorted(folder.iterdir())
    assert len(parts) > 1
    refused = run("import", "--name", "mine", parts[1])
    assert (refused.exit_code, f"Give its first part {first.name}." in refused.stderr) == (1, True)
    assert run("import", "-q", "--name", "mine", first).exit_code == 0
    made = pair("mine")
    assert [part.file for part in made.target.parts] == [path.name for path in parts]
    assert [part.local_paths for part in made.target.parts] == [(path,) for path in parts]
    for path in parts:
        path.unlink()
    with LLM.from_pair("mine", home=shelf.home, draft_tokens=0, n_ctx=128) as llm:
        assert llm.generate("a", max_tokens=2).finish_reason == "length"
    assert run("verify", "mine", "-q").stdout == f"{len(parts)} files checked, 0 damaged.\n"
    assert run("prune").stdout == "Nothing to remove.\n"
    assert run("rm", "mine", "-y").exit_code == 0
    assert list((shelf.home / "files").iterdir()) == []


def test_parts_of_a_known_split_model_are_recognised(shelf: Shelf, tmp_path: Path) -> None:
    (folder := tmp_path / "split").mkdir()
    first = write_llama(folder / "mine.gguf", seed=5, per_part=8)
    parts = sorted(folder.iterdir())
    assert run("add", "mine", "-m", first, "-q").exit_code == 0
    assert run("import", "-q", *reversed(parts)).exit_code == 0
    target = shelf.store.held(pair("mine").target)
    assert target is not None and [path.name for path in sorted(target.parent.iterdir())] == [
        path.name for path in parts
    ]


# Several at once


def test_two_processes_import_the_same_files(shelf: Shelf) -> None:
    children = [start("import", "-q", *shelf.originals) for _ in range(2)]
    results = [(*child.communicate(), child.returncode) for child in children]
    assert [code for _, _, code in results] == [0, 0], results
    assert results[0][0] == results[1][0]
    assert held(shelf) == [path.read_bytes() for path in shelf.originals]
    assert list((shelf.home / "partial").iterdir()) == []


def test_two_processes_make_a_pair_of_one_name(shelf: Shelf, tmp_path: Path) -> None:
    files = [write_llama(tmp_path / f"model{seed}.gguf", seed=seed) for seed in (5, 6)]
    children = [start("import", "-q", "--name", "mine", file) for file in files]
    results = [(*child.communicate(), child.returncode) for child in children]
    assert sorted(code for _, _, code in results) == [0, 1], results
    (error,) = [error for _, error, code in results if code]
    assert "There is a pair named mine already" in error
    assert pair("mine").target.file in {file.name for file in files}


def test_a_file_that_grows_while_it_is_read_is_refused(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.store import copying

    def grow(path: Path, report: object) -> str:
        sha256 = disk.sha256_of(path)
        with path.open("ab") as file:
            file.write(b"more")
        return sha256

    monkeypatch.setattr(copying, "sha256_of", grow)
    result = run("import", "-q", shelf.originals[0])
    assert (result.exit_code, "is being changed by another program" in result.stderr) == (1, True)
