"""`org/repo:quant` on the command line and in the API, against a hub-like server with tiny models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest
from click.testing import CliRunner, Result

import localspec
from localspec import LLM
from localspec.cli import main, opening
from localspec.errors import InvalidRequest, NotDownloaded, UnknownPair
from localspec.hub import huggingface, remote
from localspec.system.progress import Progress
from tests.hubserver import Hub, running_hub
from tests.storekit import Shelf
from tests.tinygguf import write_llama

TARGET, DRAFT, SPLIT = "Org/Tiny-GGUF:F32", "Org/Tiny-Draft-GGUF:Q8_0", "Org/Tiny-GGUF:Q6_K"
ONCE = ("-p", "hello", "-n", "8", "--temp", "0", "--draft-tokens", "3", "-c", "128")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("files")
    write_llama(folder / "Tiny-F32.gguf", seed=5)
    write_llama(folder / "Tiny-Q6_K.gguf", seed=5, per_part=8)
    draft = write_llama(folder / "draft-Q8_0.gguf", seed=5, noise=0.05)
    target = {f"all/{path.name}": path.read_bytes() for path in folder.glob("Tiny-*.gguf")}
    return {"Org/Tiny-GGUF": target, "Org/Tiny-Draft-GGUF": {draft.name: draft.read_bytes()}}


@pytest.fixture
def hub(files: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "store"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(huggingface, "PAUSE_SECONDS", 0.001)
    huggingface_hub.close_session()
    with running_hub() as server:
        server.repos |= {repo: dict(held) for repo, held in files.items()}
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server
        huggingface_hub.close_session()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def answer(*arguments: str) -> tuple[dict[str, object], Result]:
    result = run("chat", *arguments, *ONCE, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), result


def test_pull_then_chat_with_a_draft_and_no_network(hub: Hub, request: pytest.FixtureRequest) -> None:
    pulled = run("pull", TARGET.replace("F32", "f32"), "-md", DRAFT, "-q")
    assert pulled.exit_code == 0, pulled.stderr
    name = f"{TARGET} -md {DRAFT}"
    assert pulled.stdout == f"{name} is ready: localspec chat {name}\n"
    request.getfixturevalue("no_network")
    plain, _ = answer(TARGET, "--offline", "-q")
    drafted, result = answer("-m", TARGET, "-md", DRAFT, "--offline")
    assert drafted["ids"] == plain["ids"]
    assert drafted["statistics"]["drafted"] > 0  # type: ignore[index]
    assert "Tiny-F32.gguf + draft-Q8_0.gguf, computed by llama.cpp, drafting" in result.stderr
    assert answer(TARGET, "-md", DRAFT, "-q")[0]["ids"] == plain["ids"]
    again = run("pull", TARGET, "-md", DRAFT, "--json", "-q", "--offline")
    paths = json.loads(again.stdout)
    assert (paths["pair"], Path(paths["draft"]).name) == (f"{TARGET} -md {DRAFT}", "draft-Q8_0.gguf")


@pytest.mark.usefixtures("hub")
def test_a_split_model_answers_like_the_whole() -> None:
    assert run("pull", SPLIT, "-q").exit_code == run("pull", TARGET, "-q").exit_code == 0
    with LLM.from_hub(SPLIT, n_ctx=128, draft_tokens=0) as split, LLM.from_hub(TARGET, n_ctx=128) as whole:
        options = {"temperature": 0.0, "max_tokens": 8, "draft_tokens": 0}
        assert split.generate("hello", **options).ids == whole.generate("hello", **options).ids


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("more", [[], ["--offline"], ["--yes", "--offline"]])
def test_without_a_terminal_the_pull_command_is_the_answer(more: list[str]) -> None:
    result = run("chat", "-m", TARGET, "-md", DRAFT, *ONCE, *more)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{TARGET} and {DRAFT} are not on this disk." in result.stderr
    assert result.stderr.endswith(f"Run `localspec pull {TARGET} -md {DRAFT}`.\n")


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("command", ["bench", "calibrate", "estimate", "acceptance"])
def test_every_command_with_a_model_takes_them(command: str) -> None:
    result = run(command, "-m", TARGET, "-md", DRAFT)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Run `localspec pull {TARGET} -md {DRAFT}`." in result.stderr


def test_yes_pulls_what_is_missing(hub: Hub) -> None:
    drafted, result = answer("-m", TARGET, "-md", DRAFT, "--yes")
    assert drafted["text"]
    assert "Tiny-F32.gguf ready (huggingface)" in result.stderr
    assert hub.served == sum(len(hub.repos[repo][path]) for repo, path in (
        ("Org/Tiny-GGUF", "all/Tiny-F32.gguf"), ("Org/Tiny-Draft-GGUF", "draft-Q8_0.gguf")
    ))  # fmt: skip


@pytest.mark.parametrize("agreed", [True, False])
def test_a_terminal_is_asked_with_files_and_sizes(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, agreed: bool
) -> None:
    asked: list[str] = []

    def ask(question: str, default: bool) -> bool:
        asked.append(question)
        return agreed and default

    monkeypatch.setattr(opening, "can_ask", lambda: True)
    monkeypatch.setattr(opening, "ask", ask)
    result = run("chat", TARGET, *ONCE)
    size = f"{len(hub.repos['Org/Tiny-GGUF']['all/Tiny-F32.gguf']) / 1000:.0f} kB"
    assert asked == [
        f"{TARGET} is not on this disk.\nIt stands for Tiny-F32.gguf ({size}).\nDownload it now?"
    ]
    assert result.exit_code == (0 if agreed else 1)
    assert (hub.served > 0) is agreed


@pytest.mark.usefixtures("hub")
def test_a_file_and_a_reference_go_together(tmp_path: Path) -> None:
    target = write_llama(tmp_path / "own.gguf", seed=5)
    missing = run("chat", "-m", str(target), "-md", DRAFT, *ONCE)
    assert f"Run `localspec pull {DRAFT}`." in missing.stderr
    assert answer("-m", str(target), "-md", DRAFT, "--yes", "-q")[0]["text"]
    alone = ("-m", str(target), "-md", "Org/Nothing:Q4_0", "--no-draft", "-q", "-p", "hello", "-n", "8")
    assert run("chat", *alone, "-c", "128", "--temp", "0").stdout.strip()


def test_a_file_of_that_name_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    write_llama(tmp_path / "org" / "model", seed=5)
    assert answer("-m", "org/model", "-q")[0]["text"]


def test_update_takes_the_new_bytes(hub: Hub, tmp_path: Path) -> None:
    first = json.loads(run("pull", TARGET, "--json", "-q").stdout)["target"]
    body = write_llama(tmp_path / "new.gguf", seed=6).read_bytes()
    hub.repos["Org/Tiny-GGUF"]["all/Tiny-F32.gguf"] = body
    assert json.loads(run("pull", TARGET, "--json", "-q").stdout)["target"] == first
    second = json.loads(run("pull", TARGET, "--json", "-q", "--update").stdout)["target"]
    assert second != first
    assert Path(second).read_bytes() == body
    assert not Path(first).exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([TARGET, "--update", "--offline"], "--offline forbids it"),
        (["smollm2-135m", "-md", DRAFT], "-md/--draft goes with org/repo:quant"),
        (["smollm2-135m", "--update"], "--update goes with org/repo:quant"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], words: str) -> None:
    result = run("pull", *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize("draft", ["draft.gguf", "smollm2-135m"])
def test_a_draft_to_pull_must_be_a_reference(draft: str) -> None:
    result = run("pull", TARGET, "-md", draft)
    assert result.exit_code == 1
    assert f"'{draft}' does not name a model of a hub" in result.stderr


@pytest.mark.usefixtures("hub")
def test_what_is_wrong_with_a_reference_is_one_sentence() -> None:
    result = run("pull", "Org/Tiny-GGUF:Q4_K_M")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: The repository Org/Tiny-GGUF has no quantization Q4_K_M.\nOn offer: F32, Q6_K.\n"
    )
    bare = run("chat", "Org/Tiny-GGUF", "--yes", *ONCE)
    assert "On offer: F32, Q6_K. Write Org/Tiny-GGUF:QUANTIZATION." in bare.stderr


@pytest.mark.usefixtures("hub")
def test_rm_and_draft_take_references() -> None:
    run("pull", DRAFT, "-q")
    made = run("draft", "make", "-md", DRAFT, "-q")
    assert made.stdout.startswith("draft-Q8_0.gguf: drafts with")
    removed = run("rm", DRAFT, "-y")
    assert removed.stdout.startswith(f"Removed {DRAFT}, ")
    assert run("rm", DRAFT, "-y").stdout == f"Nothing of {DRAFT} was here.\n"
    with pytest.raises(NotDownloaded):
        LLM.from_hub(DRAFT)


@pytest.mark.usefixtures("hub")
def test_rm_of_a_split_model_takes_what_was_prepared_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.engine.draft_copy.default_home", lambda: tmp_path / "store")
    run("pull", SPLIT, "-q")
    run("draft", "make", "-md", SPLIT, "-q")
    assert list((tmp_path / "store" / "prepared").iterdir())
    assert run("rm", SPLIT, "-y").exit_code == 0
    for folder in ("prepared", "files", "references"):
        assert not list((tmp_path / "store" / folder).iterdir())


def test_the_api_refuses_what_is_no_reference() -> None:
    for name in ("model.gguf", "smollm2-135m", 5):
        with pytest.raises(InvalidRequest, match="does not name a model of a hub"):
            LLM.from_hub(name)  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_network")
def test_the_api_opens_no_connection(tmp_path: Path) -> None:
    with pytest.raises(NotDownloaded, match="are not on this disk") as caught:
        LLM.from_hub(TARGET, DRAFT, home=tmp_path)
    assert caught.value.missing == [TARGET, DRAFT]
    with pytest.raises(NotDownloaded, match=f"{TARGET} is not on this disk"):
        LLM.from_hub(TARGET, DRAFT, home=tmp_path, no_draft=True)


@pytest.mark.parametrize("target", [TARGET, SPLIT])
def test_check_looks_at_both_headers_and_leaves_the_weights(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(remote, "FIRST_BYTES", 2000)
    done = run("check", target, DRAFT, "-c", "128", "--json")
    assert done.exit_code == 0, done.output
    judged = json.loads(done.stdout)
    assert judged["sentence"].startswith("draft-Q8_0.gguf can draft for Tiny-")
    assert judged["memory"]["target"]["weights"] > 400_000 > 10 * hub.served
    assert not (tmp_path / "store" / "files").exists()
    offline = run("check", target, DRAFT, "--offline")
    assert offline.exit_code == 1 and f"localspec pull {target}" in offline.stderr


def test_check_of_what_was_pulled_needs_no_network(hub: Hub) -> None:
    assert run("pull", TARGET, "-md", DRAFT).exit_code == 0
    served = hub.served
    assert run("check", TARGET, DRAFT, "--offline").exit_code == 0
    assert hub.served == served


@pytest.mark.usefixtures("hub")
def test_an_application_pulls_with_progress_stops_and_goes_on(request: pytest.FixtureRequest) -> None:
    class Stopped(Exception):
        pass

    def stop(_progress: Progress) -> None:
        raise Stopped

    seen: list[Progress] = []
    with pytest.raises(Stopped):
        localspec.pull(TARGET, DRAFT, on_progress=stop)
    with pytest.raises(NotDownloaded):
        LLM.from_hub(TARGET, DRAFT, n_ctx=128)
    localspec.pull(TARGET, DRAFT, on_progress=seen.append)
    assert {event.file for event in seen if event.stage == "ready"} == {"Tiny-F32.gguf", "draft-Q8_0.gguf"}
    request.getfixturevalue("no_network")
    localspec.pull(TARGET, DRAFT, offline=True)
    with LLM.from_hub(TARGET, DRAFT, n_ctx=128, draft_tokens=2) as llm:
        assert llm.generate("hello", max_tokens=3, temperature=0).ids
    for name, error in (("no-such-pair", UnknownPair), ("a/b/c", UnknownPair), (3, InvalidRequest)):
        with pytest.raises(error):
            localspec.pull(name, draft=DRAFT if name == 3 else None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="on_progress"):
        localspec.pull(TARGET, on_progress="loud")  # type: ignore[arg-type]


def test_an_application_pulls_a_pair_by_its_name(shelf: Shelf) -> None:
    assert run("import", "-q", *map(str, shelf.originals)).exit_code == 0
    seen: list[Progress] = []
    localspec.pull("tiny", offline=True, on_progress=seen.append, home=shelf.store.home)
    assert {event.stage for event in seen} >= {"ready"}
