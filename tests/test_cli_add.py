"""`localspec add`: pairs of files that stay where they lie, or of a hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest

from localspec import LLM
from localspec.errors import FileMissing
from localspec.hub.fetching import pull
from localspec.pairs.catalogue import own_folder, pair
from localspec.pairs.pair import HubSource, LocalSource
from localspec.store.store import Store
from tests.hubserver import Hub, running_hub
from tests.storekit import Shelf, run
from tests.tinygguf import write_llama, write_stranger


@pytest.fixture
def mine(shelf: Shelf, tmp_path: Path) -> tuple[Path, Path]:
    return (
        write_llama(tmp_path / "mein modell é.gguf", seed=5),
        write_llama(tmp_path / "mein entwurf.gguf", seed=5, noise=0.05),
    )


def add(*arguments: object) -> str:
    result = run("add", *map(str, arguments), "-q")
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_files_stay_where_they_lie(shelf: Shelf, mine: tuple[Path, Path]) -> None:
    target, draft = mine
    printed = add("mine", "--target", target, "--draft", draft, "--tag", "code", "--tag", "own")
    assert printed.splitlines() == [f"mine was added: {own_folder() / 'mine.toml'}", "localspec chat mine"]
    made = pair("mine")
    assert made.tags == ("code", "own")
    assert [file.sources for file in made.files] == [(LocalSource(str(path)),) for path in mine]
    assert shelf.store.pair_paths(made) == mine
    assert list((shelf.home / "files").iterdir()) == []
    with LLM.from_pair("mine", home=shelf.home, draft_tokens=2, n_ctx=128) as llm:
        assert llm.generate("a", max_tokens=4).finish_reason == "length"


def test_a_relative_path_is_kept_absolute(
    shelf: Shelf, mine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine[0].parent)
    facts = json.loads(add("mine", "-m", mine[0].name, "--json"))
    assert facts == {"pair": "mine", "pair_file": str(own_folder() / "mine.toml"), "on_disk": True}
    assert pair("mine").target.local_paths == (mine[0],)
    assert pair("mine").draft is None


def test_rm_forgets_the_pair_and_leaves_the_files(shelf: Shelf, mine: tuple[Path, Path]) -> None:
    add("mine", "-m", mine[0], "-md", mine[1])
    shelf_of_mine = replace(shelf, pair=pair("mine"))
    copy = shelf_of_mine.prepare_draft(bytes(700))
    result = run("rm", "mine", "-y")
    assert result.stdout == "Removed mine, 700 bytes freed.\n"
    assert f"{mine[0]} stays where it is." in result.stderr
    assert all(path.is_file() for path in mine)
    assert not copy.exists()
    assert "There is no pair named 'mine'" in run("rm", "mine", "-y").stderr


def test_rm_of_a_pair_that_takes_no_room_says_that_it_was_there(
    shelf: Shelf, mine: tuple[Path, Path]
) -> None:
    add("mine", "-m", mine[0])
    assert run("rm", "mine", "-y").stdout.startswith("Removed mine")
    assert not (own_folder() / "mine.toml").exists()


def test_rm_never_forgets_an_organisations_pair(shelf: Shelf) -> None:
    shelf.fill()
    assert run("rm", "tiny", "-y").exit_code == 0
    assert (shelf.org / "tiny.toml").is_file()


def test_pull_of_ones_own_verifies_and_never_touches(shelf: Shelf, mine: tuple[Path, Path]) -> None:
    add("mine", "-m", mine[0])
    assert run("pull", "mine", "--offline", "-q").exit_code == 0
    body = bytearray(mine[0].read_bytes())
    body[-1] ^= 1
    mine[0].write_bytes(body)
    for arguments in ([], ["--offline"], ["--source", "pypi"]):
        result = run("pull", "mine", "-q", *arguments)
        assert result.exit_code == 1
        assert f"{mine[0]} is no longer the file that was added." in result.stderr
        assert mine[0].read_bytes() == bytes(body)


def test_a_file_that_is_gone_is_named(shelf: Shelf, mine: tuple[Path, Path]) -> None:
    add("mine", "-m", mine[0])
    mine[0].unlink()
    with pytest.raises(FileMissing, match=r"mein modell é\.gguf is gone"):
        pull(pair("mine"), store=Store())
    result = run("chat", "mine", "-p", "a", "-y")
    assert result.exit_code == 1
    assert f"The pair mine is not complete: {mine[0]} is gone or has another size." in result.stderr
    assert "localspec rm mine" in result.stderr


def test_a_file_that_is_damaged_is_fetched_where_it_has_another_source(shelf: Shelf) -> None:
    shelf.fill()
    add("mine", "-m", shelf.originals[0])
    made = pair("mine")
    assert made.target.sources[1:] == shelf.pair.target.sources
    shelf.originals[0].write_bytes(b"other")
    assert pull(made, store=Store(), offline=True)[0] == shelf.store.path(shelf.pair.target)


def test_a_draft_that_does_not_fit_is_refused_with_the_sentence_of_pairing(
    shelf: Shelf, mine: tuple[Path, Path], tmp_path: Path
) -> None:
    other = write_stranger(tmp_path / "other.gguf")
    result = run("add", "mine", "-m", mine[0], "-md", other)
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: other.gguf cannot draft for mein modell é.gguf: their vocabularies"
    )
    assert not shelf.home.exists()


@pytest.mark.parametrize(
    ("name", "complaint"), [("../x", "cannot be named '../x'"), ("tiny", "is a pair named tiny already")]
)
def test_a_name_that_cannot_be(shelf: Shelf, mine: tuple[Path, Path], name: str, complaint: str) -> None:
    result = run("add", name, "-m", mine[0])
    assert (result.exit_code, complaint in result.stderr) == (1, True)
    assert not shelf.home.exists()


def test_a_target_must_be_given_and_be_a_model(shelf: Shelf) -> None:
    assert run("add", "mine").exit_code == 2
    (text := shelf.elsewhere / "text.gguf").write_text("hello", encoding="utf-8")
    result = run("add", "mine", "-m", text)
    assert (result.exit_code, "is not a GGUF file: it looks like a text file" in result.stderr) == (1, True)


# Of a hub


@pytest.fixture
def hub(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the tiny pair, and with a split model."""
    (folder := tmp_path / "split").mkdir()
    write_llama(folder / "big-Q6_K.gguf", seed=5, per_part=8)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    huggingface_hub.close_session()
    with running_hub() as server:
        server.repos["someone/tiny"] = {
            f"{role}-F32.gguf": path.read_bytes()
            for role, path in zip(("target", "draft"), shelf.originals, strict=True)
        }
        server.repos["someone/split"] = {f"q6/{path.name}": path.read_bytes() for path in folder.iterdir()}
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server
        huggingface_hub.close_session()


def test_models_of_a_hub_are_pinned_and_fetched_by_pull(shelf: Shelf, hub: Hub) -> None:
    references = ("someone/tiny:target-F32.gguf", "someone/tiny:draft-F32.gguf")
    printed = add("mine", "-m", references[0], "-md", references[1])
    assert printed.splitlines()[-1] == "localspec pull mine"
    assert not list((shelf.home / "files").iterdir())
    made = pair("mine")
    assert [file.sha256 for file in made.files] == [file.sha256 for file in shelf.pair.files]
    assert [isinstance(file.sources[0], HubSource) for file in made.files] == [True, True]
    pulled = pull(made, store=Store())
    assert [path.read_bytes() for path in pulled if path] == [path.read_bytes() for path in shelf.originals]


def test_a_split_model_of_a_hub_with_a_draft_of_ones_own(
    shelf: Shelf, hub: Hub, mine: tuple[Path, Path]
) -> None:
    add("mine", "-m", "someone/split:Q6_K", "-md", mine[1])
    made = pair("mine")
    assert len(made.target.parts) > 1
    assert made.draft is not None and made.draft.local_paths == (mine[1],)
    pull(made, store=Store())
    with LLM.from_pair("mine", home=shelf.home, draft_tokens=2, n_ctx=128) as llm:
        assert llm.generate("a", max_tokens=2).finish_reason == "length"
    (line,) = [line for line in run("list").stdout.splitlines() if line.startswith("mine ")]
    assert "Q6_K + F32" in line


@pytest.mark.usefixtures("hub")
def test_a_draft_of_a_hub_is_judged_before_it_is_fetched(shelf: Shelf, tmp_path: Path) -> None:
    other = write_stranger(tmp_path / "other.gguf")
    result = run("add", "mine", "-m", other, "-md", "someone/tiny:draft-F32.gguf")
    assert (result.exit_code, "cannot draft for other.gguf" in result.stderr) == (1, True)
    assert "has not been pulled, and offline" in run("add", "m", "-m", "someone/tiny", "--offline").stderr
    assert not shelf.home.exists()


@pytest.mark.usefixtures("hub")
def test_a_model_that_was_pulled_by_name_is_listed_shown_and_verified(shelf: Shelf) -> None:
    name = "someone/tiny:target-F32.gguf"
    assert f"Run `localspec pull {name}`." in run("show", name).stderr
    assert run("pull", name, "-q").exit_code == 0
    assert f"\n{name} " in run("list").stdout
    shown = run("show", name).stdout
    assert "context     512 tokens" in shown and "from Hugging Face, someone/tiny" in shown
    assert run("verify", name, "-q").stdout == "1 file checked, 0 damaged.\n"
    assert run("prune").stdout == "Nothing to remove.\n"
