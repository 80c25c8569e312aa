"""`localspec draft`: what it shows, makes and removes, on a small draft in a store of its own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from localspec.cli import main
from localspec.engine import draft_copy as preparation
from localspec.pairs import catalogue
from localspec.pairs.catalogue import ModelFile, Pair
from localspec.store.prepared import ORIGINAL
from tests.tinygguf import write_llama

FASTER = {ORIGINAL: 0.015, "q4_0": 0.009}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("LOCALSPEC_HOME", str(home))
    monkeypatch.setattr(preparation, "default_home", lambda: home)
    monkeypatch.setattr(
        preparation, "time_token", lambda contexts: {name: [FASTER[name]] for name in contexts}
    )
    return home


@pytest.fixture
def draft(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The draft of the pair `tiny`, which is on the disk."""
    made = write_llama(home.parent / "draft.gguf", seed=1)
    files = [_model_file("target.gguf", b"target"), _model_file("draft.gguf", made.read_bytes())]
    for file, body in zip(files, (b"target", made.read_bytes()), strict=True):
        folder = home / "files" / file.sha256
        folder.mkdir(parents=True)
        (folder / file.file).write_bytes(body)
    tiny = Pair("tiny", "A tiny pair", "MIT", 64, ("test",), *files)
    lonely = Pair("lonely", "Without a draft", "MIT", 64, ("test",), files[0], None)
    monkeypatch.setattr(catalogue, "pair", lambda name: lonely if name == "lonely" else tiny)
    return home / "files" / files[1].sha256 / "draft.gguf"


def _model_file(name: str, body: bytes) -> ModelFile:
    return ModelFile(file=name, bytes=len(body), sha256=hashlib.sha256(body).hexdigest(), sources=())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["draft", *arguments])


def test_nothing_is_prepared_at_first(draft: Path) -> None:
    assert run().stdout == "No draft has been prepared.\n"
    assert run("show", "tiny").stdout == "draft.gguf has not been prepared.\n"
    assert json.loads(run("show", "--json").stdout) == []


def test_make_says_what_it_measured_and_chose(draft: Path, home: Path) -> None:
    made = run("make", "tiny", "-t", "2")
    assert made.stdout == "draft.gguf: drafts with q4_0 (original 15.0 ms, q4_0 9.0 ms a token)\n"
    assert made.stderr == "Preparing draft.gguf for this machine, once (some seconds).\n"
    shown = run("show").stdout.splitlines()
    (copy,) = (home / "prepared").rglob("*.gguf")
    assert shown[0] == str(draft)
    assert shown[1] == "  with -t 2: drafts with q4_0 (original 15.0 ms, q4_0 9.0 ms a token)"
    assert shown[2].startswith(f"  {copy}, ")


def test_json_for_programs(draft: Path, home: Path) -> None:
    made = json.loads(run("make", "tiny", "--json", "-q").stdout)
    assert made == {"draft": str(draft), "chosen": "q4_0", "seconds_per_token": FASTER, "fault": None}
    (entry,) = json.loads(run("show", "tiny", "--json").stdout)
    (copy,) = (home / "prepared").rglob("*.gguf")
    assert entry["copies"] == [{"format": "q4_0", "path": str(copy), "bytes": copy.stat().st_size}]
    assert entry["trials"][0]["chosen"] == "q4_0"
    assert json.loads(run("rm", "tiny", "--json").stdout) == {
        "draft": str(draft),
        "freed": entry["copies"][0]["bytes"],
    }


def test_quiet_says_only_the_result(draft: Path) -> None:
    assert run("make", "-q").stderr == ""


def test_rm_removes_the_copy_and_not_the_draft(draft: Path, home: Path) -> None:
    run("make", "tiny")
    assert run("rm", "tiny").stdout.startswith("Removed what was prepared from draft.gguf, ")
    assert list((home / "prepared").iterdir()) == []
    assert draft.is_file()
    assert run("rm", "tiny").stdout == "Nothing prepared from draft.gguf was here.\n"


def test_a_file_of_ones_own_also_after_it_is_gone(home: Path, tmp_path: Path) -> None:
    file = write_llama(tmp_path / "mine.gguf", seed=2)
    assert run("make", "-md", str(file)).exit_code == 0
    file.unlink()
    assert run("show", "-md", str(file)).stdout.startswith(str(file))
    assert run("rm", "-md", str(file)).stdout.startswith("Removed")
    assert run().stdout == "No draft has been prepared.\n"


def test_a_file_that_is_no_model_is_named(home: Path, tmp_path: Path) -> None:
    (file := tmp_path / "text.gguf").write_text("hello", encoding="utf-8")
    result = run("make", "-md", str(file))
    assert (result.exit_code, str(file) in result.stderr) == (1, True)
    assert "no-such.gguf" in run("make", "-md", "no-such.gguf").stderr


@pytest.mark.usefixtures("draft")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["rm"], "rm needs a PAIR"),
        (["make", "tiny", "-md", "x.gguf"], "both name a draft"),
        (["make", "lonely"], "no draft model"),
        (["polish"], "polish"),
    ],
)
def test_wrong_usage(arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


@pytest.mark.usefixtures("draft")
def test_a_pair_without_a_draft_may_have_copies_of_its_target() -> None:
    assert run("show", "lonely").stdout == "target.gguf has not been prepared.\n"
    assert run("rm", "lonely").stdout == "Nothing prepared from target.gguf was here.\n"


@pytest.mark.usefixtures("draft")
def test_absurd_threads_are_refused() -> None:
    result = run("make", "tiny", "-t", "0")
    assert (result.exit_code, "Error: -t/--threads is 0." in result.stderr) == (2, True)
