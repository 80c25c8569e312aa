"""`localspec export` and `LLM.from_folder`: a folder that is all an application needs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from filelock import FileLock

from localspec import LLM
from localspec.errors import CatalogueError, InvalidRequest
from localspec.pairs.folder import read_folder
from localspec.pairs.pair import LocalSource
from localspec.pairs.pairfile import read_pair
from localspec.store import copying, exporting
from tests.storekit import Shelf, listing, model_file, run
from tests.tinygguf import write_llama

NAMES = ["LICENCE.txt", "README.md", "tiny-draft.gguf", "tiny-target.gguf", "tiny.toml"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def out(shelf: Shelf) -> Path:
    """Where to: does not exist yet."""
    return shelf.elsewhere / "my äpp" / "models"


def test_a_folder_with_everything_in_it(shelf: Shelf, out: Path) -> None:
    places = shelf.fill()
    result = run("export", "tiny", out)
    assert (result.exit_code, result.stdout) == (0, f"tiny is in {out}: LLM.from_folder loads it.\n")
    assert "tiny-target.gguf copy (disk)" in result.stderr
    assert names(out) == NAMES
    assert [(out / place.name).read_bytes() for place in places] == [place.read_bytes() for place in places]
    shipped = read_pair((out / "tiny.toml").read_text(encoding="utf-8"), str(out / "tiny.toml"))
    assert [file.local_paths for file in shipped.files] == [(out / place.name,) for place in places]
    assert [file.sources[1:] for file in shipped.files] == [file.sources for file in shelf.pair.files]
    assert 'path = "tiny-target.gguf"' in (out / "tiny.toml").read_text(encoding="utf-8")
    licence = (out / "LICENCE.txt").read_text(encoding="utf-8")
    assert "Licence of the models: MIT." in licence
    assert shelf.pair.target.sha256 in licence and "someone/some-GGUF at revision" in licence
    quiet = run("export", "tiny", out, "-q", "--json")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert json.loads(quiet.stdout)["pair_file"] == str(out / "tiny.toml")


@pytest.fixture
def shipped(shelf: Shelf, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder on another machine: no store, no network, and whoever writes into it is found out."""
    shelf.fill()
    assert run("export", "tiny", out, "-q").exit_code == 0
    moved = out.rename(tmp_path / "shipped é 模型")
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "no-store"))
    monkeypatch.delenv("LOCALSPEC_PAIRS")

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for path in (*moved.iterdir(), moved):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = listing(moved)
    yield moved
    assert listing(moved) == before
    moved.chmod(0o755)


@pytest.mark.usefixtures("shelf")
def test_the_folder_loads_without_network_and_store(shipped: Path, tmp_path: Path) -> None:
    with LLM.from_folder(shipped, draft_tokens=2, n_ctx=128) as llm:
        assert llm.generate("a", max_tokens=6, temperature=0.0).stats.to_dict()["drafted"] > 0
        assert llm.warnings == ()
    assert not (tmp_path / "no-store").exists()


@pytest.mark.usefixtures("shelf")
def test_the_folder_loads_with_the_defaults(shipped: Path) -> None:
    with LLM.from_folder(str(shipped), n_ctx=128) as llm:
        assert llm.generate("a", max_tokens=2).finish_reason == "length"


@pytest.mark.usefixtures("shelf")
def test_the_readmes_three_lines_run(shipped: Path) -> None:
    text = (shipped / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) == 3
    code = code.replace("path/of/this/folder", str(shipped)).replace('")', '", draft_tokens=2, n_ctx=128)', 1)
    code = code.replace("]).text", "], max_tokens=3).text")
    done = subprocess.run(
        [sys.executable, "-c", code + "llm.close()"],
        env={**os.environ, "PYTHONUTF8": "1"}, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


# What is shipped


def test_the_prepared_draft_is_shipped_on_request(shelf: Shelf, out: Path) -> None:
    shelf.fill()
    refused = run("export", "tiny", out, "--prepared")
    assert (refused.exit_code, refused.stderr) == (
        1,
        "error: There is no prepared draft of the pair tiny on this disk.\n"
        "Run `localspec draft make tiny`, or leave out --prepared: the draft may be fastest as it is.\n",
    )
    assert not out.exists()
    body = write_llama(shelf.elsewhere / "copy.gguf", seed=1, noise=0.1).read_bytes()
    copy = shelf.prepare_draft(body)
    assert run("export", "tiny", out, "--prepared", "-q").exit_code == 0
    found, target, draft = read_folder(out)
    assert draft == out / copy.name and draft.read_bytes() == body
    assert found.draft is not None and found.draft.sources == (LocalSource(str(draft)),)
    with LLM.from_folder(out, draft_tokens=2, n_ctx=128) as llm:
        assert llm.settings["draft"]["file"] == str(draft)  # type: ignore[index]
        assert llm.settings["target"]["file"] == str(target)  # type: ignore[index]


def test_a_pair_without_a_draft(shelf: Shelf, out: Path) -> None:
    lonely = replace(shelf.pair, draft=None)
    shelf.know(lonely)
    replace(shelf, pair=lonely).fill()
    assert "has no draft model" in run("export", "tiny", out, "--prepared").stderr
    assert run("export", "tiny", out, "-q").exit_code == 0
    assert read_folder(out)[2] is None


def test_two_files_of_one_name_do_not_meet(shelf: Shelf, out: Path) -> None:
    (other := shelf.elsewhere / "other").mkdir()
    draft = write_llama(other / "TINY-target.gguf", seed=9)
    same = replace(shelf.pair, draft=replace(model_file(draft), sources=(LocalSource(str(draft)),)))
    shelf.know(same)
    shelf.fill(draft=False)
    assert run("export", "tiny", out, "-q").exit_code == 0
    _, target, shipped = read_folder(out)
    assert shipped == out / "draft-TINY-target.gguf"
    assert [path.read_bytes() for path in (target, shipped)] == [
        shelf.originals[0].read_bytes(), draft.read_bytes(),
    ]  # fmt: skip


def test_a_file_of_ones_own_is_shipped_from_where_it_lies(shelf: Shelf, out: Path) -> None:
    assert run("add", "mine", "-m", shelf.originals[0], "-q").exit_code == 0
    assert run("export", "mine", out, "-q").exit_code == 0
    assert str(shelf.elsewhere / "tiny-target.gguf") not in (out / "mine.toml").read_text(encoding="utf-8")
    assert read_folder(out)[1].read_bytes() == shelf.originals[0].read_bytes()


def test_a_split_model_is_shipped_in_its_parts(shelf: Shelf, out: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "split").mkdir()
    first = write_llama(folder / "mine.gguf", seed=5, per_part=8)
    draft = write_llama(folder / "draft.gguf", seed=5, noise=0.05, per_part=8)
    assert run("add", "mine", "-m", first, "-md", draft, "-q").exit_code == 0
    assert run("export", "mine", out, "-q").exit_code == 0
    assert [path.name for path in sorted(out.glob("*.gguf"))] == [
        path.name for path in sorted(folder.iterdir())
    ]
    for path in folder.iterdir():
        path.unlink()
    with LLM.from_folder(out, draft_tokens=2, n_ctx=128) as llm:
        assert llm.generate("a", max_tokens=2).finish_reason == "length"
    sorted(out.glob("mine-*.gguf"))[-1].unlink()
    with pytest.raises(CatalogueError, match=r"mine-.*\.gguf is missing"):
        LLM.from_folder(out)


def test_a_model_of_a_hub_needs_a_name(shelf: Shelf, out: Path) -> None:
    result = run("export", "some/repo:Q8_0", out)
    assert (result.exit_code, "Run `localspec add NAME -m some/repo:Q8_0`" in result.stderr) == (1, True)


# Resumed, atomic, room


def test_stopped_at_any_moment_it_goes_on(shelf: Shelf, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.fill()
    monkeypatch.setattr(copying, "BLOCK", 10_000)
    stops = iter(range(1, 100))
    copied = 0
    real = copying.append

    def append(source: Path, partial: Path, report: object) -> None:
        nonlocal copied
        start = partial.stat().st_size if partial.exists() else 0
        limit = start + 10_000 * next(stops)

        def stopping(done: int, phase: str) -> None:
            if done >= limit:
                raise KeyboardInterrupt

        try:
            real(source, partial, stopping)  # type: ignore[arg-type]
        finally:
            copied += partial.stat().st_size - start

    monkeypatch.setattr(copying, "append", append)
    codes = []
    while not codes or codes[-1]:
        result = run("export", "tiny", out, "-q")
        codes.append(result.exit_code)
        if result.exit_code:
            assert "The same command goes on from here." in result.stderr
            assert not (out / "tiny.toml").exists()
            for path, original in zip(("tiny-target.gguf", "tiny-draft.gguf"), shelf.originals, strict=True):
                assert not (out / path).exists() or (out / path).read_bytes() == original.read_bytes()
    assert len(codes) > 3 and set(codes[:-1]) == {128 + signal.SIGINT}
    assert copied == shelf.pair.bytes
    assert names(out) == NAMES


def test_a_left_over_that_is_not_the_beginning_is_not_trusted(shelf: Shelf, out: Path) -> None:
    shelf.fill()
    out.mkdir(parents=True)
    (out / "tiny-target.gguf.part").write_bytes(b"x" * 100)
    (out / "tiny-draft.gguf.part").write_bytes(b"x" * 10_000_000)
    assert run("export", "tiny", out, "-q").exit_code == 0
    assert names(out) == NAMES
    assert (out / "tiny-target.gguf").read_bytes() == shelf.originals[0].read_bytes()
    assert (out / "tiny-draft.gguf").read_bytes() == shelf.originals[1].read_bytes()


def test_a_damaged_store_is_not_shipped(shelf: Shelf, out: Path) -> None:
    place = shelf.fill()[0]
    body = bytearray(place.read_bytes())
    body[-1] ^= 1
    place.write_bytes(body)
    result = run("export", "tiny", out, "-q")
    assert result.exit_code == 1
    assert f"{place} is damaged" in result.stderr and "localspec verify" in result.stderr
    assert not (out / "tiny.toml").exists() and not (out / "tiny-target.gguf").exists()


def test_room_is_looked_at_first(shelf: Shelf, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.fill()
    needed: list[int] = []
    monkeypatch.setattr(exporting, "require_room", lambda _folder, size: needed.append(size))
    run("export", "tiny", out, "-q")
    run("export", "tiny", out, "-q")
    assert needed == [shelf.pair.bytes, 0]


def test_a_folder_with_other_things_is_refused(shelf: Shelf, out: Path) -> None:
    shelf.fill()
    out.mkdir(parents=True)
    (out / "thesis.txt").write_text("years of work", encoding="utf-8")
    result = run("export", "tiny", out)
    assert (result.exit_code, "holds other things, such as thesis.txt" in result.stderr) == (1, True)
    assert names(out) == ["thesis.txt"]


@pytest.mark.parametrize("name", ["README.md", "LICENCE.txt", "tiny-target.gguf", "tiny-draft.gguf"])
def test_files_that_only_have_the_names_are_not_replaced(shelf: Shelf, out: Path, name: str) -> None:
    places = {place.name: place for place in shelf.fill()}
    out.mkdir(parents=True)
    mine = b"x" * places[name].stat().st_size if name in places else b"years of work\n"
    (out / name).write_bytes(mine)
    result = run("export", "tiny", out)
    assert (result.exit_code, f"holds other things, such as {name}" in result.stderr) == (1, True)
    assert names(out) == [name]
    assert (out / name).read_bytes() == mine


def test_an_export_that_has_changed_is_brought_up_to_date(shelf: Shelf, out: Path) -> None:
    (target, _) = shelf.fill()
    assert run("export", "tiny", out).exit_code == 0
    (out / "README.md").write_text("of another version", encoding="utf-8")
    (out / target.name).write_bytes(b"damaged")
    assert run("export", "tiny", out).exit_code == 0
    assert (out / target.name).read_bytes() == target.read_bytes()
    assert (out / "README.md").read_text(encoding="utf-8").startswith("# tiny")


def test_a_file_where_the_folder_should_be(shelf: Shelf, out: Path) -> None:
    shelf.fill()
    out.parent.mkdir()
    out.write_text("", encoding="utf-8")
    result = run("export", "tiny", out)
    assert (result.exit_code, str(out) in result.stderr) == (1, True)


def test_two_exports_at_once(shelf: Shelf, out: Path) -> None:
    shelf.fill()
    out.mkdir(parents=True)
    with FileLock(out / ".exporting"):
        result = run("export", "tiny", out)
    assert (result.exit_code, "Another process is exporting to" in result.stderr) == (1, True)
    assert run("export", "tiny", out, "-q").exit_code == 0
    assert names(out) == NAMES


@pytest.mark.parametrize(
    ("name", "complaint"), [("../tiny", "no pair named"), ("tiny", "localspec pull tiny")]
)
def test_what_cannot_be_exported(shelf: Shelf, out: Path, name: str, complaint: str) -> None:
    result = run("export", name, out)
    assert (result.exit_code, complaint in result.stderr) == (1, True)
    assert not out.exists()


def test_an_empty_name_of_a_folder(shelf: Shelf) -> None:
    assert run("export", "tiny", "").exit_code == 2


# from_folder refuses


def test_a_folder_that_is_not_whole_is_refused(shelf: Shelf, out: Path) -> None:
    shelf.fill()
    run("export", "tiny", out, "-q")
    target = out / "tiny-target.gguf"
    body = target.read_bytes()
    target.write_bytes(body[:-1])
    with pytest.raises(CatalogueError, match=r"tiny-target\.gguf has another size than its pair file says"):
        LLM.from_folder(out)
    target.unlink()
    with pytest.raises(CatalogueError, match=r"tiny-target\.gguf is missing"):
        LLM.from_folder(out)
    (out / "second.toml").write_text("", encoding="utf-8")
    with pytest.raises(CatalogueError, match="has 2 pair files, and must have one"):
        LLM.from_folder(out)
    for path in out.glob("*.toml"):
        path.unlink()
    with pytest.raises(CatalogueError, match="has no pair file, and must have one"):
        LLM.from_folder(out)


@pytest.mark.parametrize("folder", ["no-such-folder", "a\0b"])
def test_a_folder_that_does_not_exist(folder: str) -> None:
    with pytest.raises(CatalogueError, match="The folder "):
        LLM.from_folder(folder)


def test_no_folder_at_all() -> None:
    with pytest.raises(InvalidRequest, match="folder is None"):
        LLM.from_folder(None)  # type: ignore[arg-type]
