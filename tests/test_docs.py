"""README.md and docs/: every link leads somewhere, every command parses, and every block of code runs."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner

import localspec
from localspec import LLM, errors, server
from localspec.cli import main
from localspec.decoding.model_drafter import Stop
from localspec.decoding.stats import Stats
from localspec.engine.drafting_status import describe_drafting
from localspec.server.schemas import ChatRequest, CompletionRequest

from .dockit import (
    COMMANDS,
    PAGES,
    README,
    ROOT,
    Block,
    all_blocks,
    anchors,
    blocks,
    commands,
    dead_links,
    deep_paths,
    prose,
    read,
)
from .serverkit import Running, ready, running
from .tinygguf import write_pair

PAIR = "qwen2.5-coder-1.5b"
"""What the pages run; here a tiny pair takes its place."""
ADDRESS = "http://127.0.0.1:8080"
"""Where the pages have their server."""
RECIPES = "docs/recipes.md"
"""Its Python runs in `test_recipes.py`."""
LONGEST_FRONT_PAGE = 120
ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type)}
PUBLIC = {
    "localspec": {*localspec.__all__, "errors"},
    "localspec.server": set(server.__all__),
    "localspec.errors": ERRORS,
    "localspec.__main__": {"main"},
}
PUBLIC_PATHS = {*PUBLIC, *(f"{module}.{name}" for module in PUBLIC for name in (*PUBLIC[module], "__all__"))}
PYTHON = [block for block in all_blocks() if block.language == "python"]
RUN_FROZEN = "docs/shipping.md"
"""The page whose programs run in test_freezing.py."""


# The design page describes the code


DESIGN = read(ROOT / "docs" / "design.md")


def test_the_map_is_the_import_contract() -> None:
    drawn = blocks(DESIGN, "docs/design.md")[0].text
    rooms = [re.split(r"\s{2,}", line)[0].split(", ") for line in drawn.splitlines() if line]
    contract = tomllib.loads(read(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"][0]["layers"]
    assert [set(layer) for layer in rooms] == [set(re.findall(r"\w+", layer)) for layer in contract]


def test_every_file_that_the_design_names_is_there() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", DESIGN))
    assert {"decoding/loop.py", "engine/libraries.py", "models/"} <= named
    assert [
        name for name in named if not ((ROOT / "localspec" / name).exists() or (ROOT / name).exists())
    ] == []
    package = ROOT / "localspec"
    found = {file.parent.relative_to(package) for file in package.rglob("__init__.py")}
    # PyInstaller prescribes what the folders of its hooks are called.
    rooms = {f"{room.as_posix()}/" for room in found if room.parts and room.parent.name != "freezing"}
    assert rooms <= named


# Links and names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead_links(page, read(page)) == []


def test_the_front_page_links_every_other() -> None:
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= set(re.findall(r"\((docs/\w+\.md)\)", read(README)))


def test_dead_links_are_found() -> None:
    text = "# One `word`\n## Two, three\n## Two, three\n[a](#one-word) [b](#two-three-1) [c](docs)\n"
    assert anchors(text) == {"one-word", "two-three", "two-three-1"}
    assert dead_links(README, text) == []
    faults = "[a](#two) [b](nowhere.md) [c](docs/install.md#nowhere)"
    assert dead_links(README, f"{text}{faults}") == ["#two", "nowhere.md", "docs/install.md#nowhere"]


def test_pages_that_messages_name_are_there() -> None:
    sources = [file for folder in ("localspec", "scripts") for file in (ROOT / folder).rglob("*.py")]
    named = {name for file in sources for name in re.findall(r"(?<![\w/])docs/\w+\.md", read(file))}
    assert "docs/install.md" in named
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_only_public_names_are_written(page: Path) -> None:
    assert deep_paths(read(page), PUBLIC_PATHS) == []


def test_deep_paths_are_found() -> None:
    text = "`localspec.LLM`, localspec.server.create_app(x), talk.localspec, localspec.llm.LLM and localspec.nothing"
    assert deep_paths(text, PUBLIC_PATHS) == ["localspec.llm.LLM", "localspec.nothing"]


# What ends the line under an answer

TROUBLE = read(ROOT / "docs" / "troubleshooting.md")


def written_reasons(file: str, is_reason: Callable[[ast.AST], ast.expr | None]) -> set[str]:
    """Texts of several words in what `is_reason` finds in a source file; `{...}` of f-strings as NAME."""
    found = set()
    for node in ast.walk(ast.parse(read(ROOT / "localspec" / file))):
        value = is_reason(node)
        for part in ast.walk(value) if value is not None else ():
            if isinstance(part, ast.JoinedStr):
                found.add(
                    "".join(str(p.value) if isinstance(p, ast.Constant) else "NAME" for p in part.values)
                )
            elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value[:1].isalpha():
                found.add(part.value)
    whole = {text for text in found if " " in text}
    return {text for text in whole if not any(text != other and text in other for other in whole)}


def no_draft_reason(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute):
        return node.value if target.attr == "no_draft_reason" else None
    return None


def stop_reason(node: ast.AST) -> ast.expr | None:
    is_stop = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Stop"
    return node.args[0] if is_stop and isinstance(node, ast.Call) else None


def endings() -> set[str]:
    """Every text that `describe_drafting` gives, with NAME for names and N for numbers."""
    stops = [Stop(reason, 4096) for reason in written_reasons("decoding/model_drafter.py", stop_reason)]
    reasons = {*written_reasons("engine/engine.py", no_draft_reason)}
    assert (len(stops), len(reasons)) == (2, 2), "another reason: the page must tell of it"
    controllers = [
        None,
        *(
            SimpleNamespace(can_pay=lambda _n, pays=pays: pays, measured=m)
            for pays in (True, False)
            for m in (True, False)
        ),
    ]
    found = set()
    for reason, stop, draft, controller, length, drafted in product(
        ("", *reasons), (None, *stops), (True, False), controllers, ("auto", 0, 3, 40), (0, 4)
    ):
        engine: Any = SimpleNamespace(
            no_draft_reason=reason,
            draft=draft,
            drafts_itself=False,
            draft_stop=stop if draft else None,
            most_draft_tokens=31,
        )
        stats = Stats(tokens=9, rounds=9, drafted=drafted)
        found.add(describe_drafting(engine, controller, length, stats))  # type: ignore[arg-type]
    return {_general(text) for text in found}


def _general(text: str) -> str:
    text = re.sub(r"\b(?:NAME|LIBRARY|FILE|mamba)\b", "NAME", " ".join(text.split()))
    return re.sub(r"\d+", "N", text.replace("holds NAME", "holds N"))


def test_every_ending_of_the_line_is_told() -> None:
    """Each is an entry of the list, but for what may follow any of them; and the list has nothing else."""
    section = TROUBLE[TROUBLE.index("## It is not faster") :].split("A low acceptance rate")[0]
    quoted = {_general(text) for text in re.findall(r"`((?:drafting|;) [^`]*)`", section)}
    told = {text.removeprefix("drafting ") for text in quoted if text.startswith("drafting ")}
    after = {text for text in quoted if text.startswith("; ")}
    bare = {text: text for text in endings()}
    for text in list(bare):
        for end in after:
            bare[text] = bare[text].removesuffix(end)
    assert {text[len(bare[text]) :] for text in bare} == {"", *after}
    fixed = {text.replace("N (not N: a pass checks no more)", "N") for text in told}
    stopped = "off: the draft model ended at token N: "
    missing = {
        text
        for text in bare.values()
        if text.replace("N (not N: a pass checks no more)", "N") not in fixed and not text.startswith(stopped)
    }
    assert missing == set()
    assert {text for text in told if text not in bare.values()} == set()


# The front page


def test_the_front_page_is_short_and_says_early_when_it_pays() -> None:
    lines = read(README).splitlines()
    assert len(lines) <= LONGEST_FRONT_PAGE
    title, _, *text = lines
    assert title == "# localspec"
    assert re.match(r"When it pays: .*\bmean \d\.\d\dx, least \d\.\d\dx", text[2])
    first = "\n".join(text[: text.index("")])
    assert re.findall(r"\d\.\d\dx", first) == ["1.07x", "0.92x", "1.23x", "1.56x"]


def test_ci_runs_the_readmes_test_command() -> None:
    lines = read(ROOT / ".ci" / "run").splitlines()
    (command,) = [line.removeprefix("exec ") for line in lines if line.startswith("exec ")]
    own = [line for block in blocks(read(README), "README.md") for line in block.commands("python3")]
    assert own[:2] == ["python3 scripts/dev.py chat", command]
    assert command == "python3 scripts/dev.py test"


# Commands


@pytest.mark.parametrize("line", commands("localspec"))
def test_every_command_parses(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(main, click.Group)
    args = shlex.split(line, comments=True)[1:]
    command = main.get_command(click.Context(main), args[0])
    assert command is not None
    monkeypatch.setattr(command, "callback", lambda **_values: click.echo("parsed"))
    done = CliRunner().invoke(main, args)
    assert (done.exit_code, done.output) == (0, "parsed\n")


def test_every_command_is_shown() -> None:
    assert isinstance(main, click.Group)
    shown = {line.split()[1] for line in commands("localspec")}
    assert shown == set(main.list_commands(click.Context(main)))


def test_every_script_that_is_called_is_there() -> None:
    called = {name for page in PAGES for name in re.findall(r"\bscripts/\w+\.py", read(page))}
    assert "scripts/dev.py" in called
    assert [name for name in called if not (ROOT / name).is_file()] == []


def write_commands(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "scripts" / "write_commands.py"), *args]
    return subprocess.run(argv, env={**os.environ, **env}, cwd="/", capture_output=True, text=True)


def test_the_page_of_commands_is_what_its_script_writes() -> None:
    done = write_commands("--check", COLUMNS="40", LOCALSPEC_API_KEY="secret", LOCALSPEC_HOME="/elsewhere")
    assert (done.returncode, done.stderr) == (0, "")
    assert isinstance(main, click.Group)
    names = main.list_commands(click.Context(main))
    assert re.findall(r"^## localspec (\w+)$", read(COMMANDS), flags=re.MULTILINE) == names


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of scripts/write_commands.py."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import write_commands

    yield write_commands
    del sys.modules["write_commands"]


def test_a_page_of_commands_that_is_old_is_refused_and_written_anew(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "commands.md"
    monkeypatch.setattr(script, "FILE", page)
    assert script.run(["--check"]) == 1
    page.write_text(read(COMMANDS).replace("Tokens drafted per round.", "Tokens.", 1), encoding="utf-8")
    assert script.run(["--check"]) == 1
    assert "python3 scripts/write_commands.py" in capsys.readouterr().err
    assert (script.run([]), script.run(["--check"])) == (0, 0)
    assert read(page) == read(COMMANDS)
    assert script.run(["--other"]) == 2


def test_the_script_of_commands_is_light() -> None:
    code = (
        "import sys; sys.path.insert(0, 'scripts'); import write_commands; write_commands.commands_page(); "
        "print(sorted({'llama_cpp', 'numpy', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


# Python


@dataclass(frozen=True)
class Place:
    """A folder with `target.gguf` and `draft.gguf`, and localspec's folder, which knows them as the pair `tiny`."""

    folder: Path
    home: Path

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Python's answer to `code` in a fresh interpreter, in this folder."""
        env = {**os.environ, "LOCALSPEC_HOME": str(self.home), "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
        argv = [sys.executable, "-c", code]
        return subprocess.run(argv, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    found = Place(tmp_path_factory.mktemp("docs"), tmp_path_factory.mktemp("home"))
    target, draft = write_pair(found.folder, ends=True, n_ctx_train=8192)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(found.home))
        done = CliRunner().invoke(main, ["add", "tiny", "-m", str(target), "-md", str(draft)])
    assert done.exit_code == 0, done.output
    return found


@pytest.fixture(scope="module")
def serving(place: Place) -> Iterator[Running]:
    """A server on the tiny pair, under the name that the pages use."""
    files, sizes = (
        [place.folder / f"{name}.gguf" for name in ("target", "draft")],
        {"n_ctx": 2048, "threads": 1},
    )
    with running(lambda: LLM.from_files(*files, draft_tokens=3, **sizes), names=(PAIR,)) as started:
        yield ready(started)


def imported(block: Block) -> Iterator[tuple[str, str]]:
    """Module and name of everything that a block takes from localspec."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "localspec":
            yield from ((node.module or "", alias.name) for alias in node.names)


def faults(block: Block) -> list[str]:
    return [f"{module}.{name}" for module, name in imported(block) if name not in PUBLIC.get(module, ())]


def test_there_is_python_on_the_front_page_and_behind_it() -> None:
    assert {block.page for block in PYTHON} >= {"README.md", "docs/python.md", "docs/server.md"}


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_takes_public_names_only(block: Block) -> None:
    assert faults(block) == []


def test_names_that_are_not_public_are_found() -> None:
    text = "from localspec import LLM, nothing\nfrom localspec.llm import LLM\nfrom os import path\n"
    assert faults(Block("page", 1, "python", text)) == ["localspec.nothing", "localspec.llm.LLM"]


@pytest.mark.parametrize(
    "block", [block for block in PYTHON if block.page not in (RECIPES, RUN_FROZEN)], ids=str
)
def test_python_runs(block: Block, place: Place, serving: Running) -> None:
    done = place.run(block.text.replace(PAIR, "tiny").replace(ADDRESS, serving.url))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout or "print(" not in block.text


def test_python_that_fails_is_found(place: Place) -> None:
    assert place.run("from localspec import LLM\nLLM.from_pair('tiny', no_such_option=1)").returncode != 0


# The server


def requested(line: str) -> dict[str, Any]:
    """Arguments for `httpx.request` that ask what a curl command asks; other options of curl are refused."""
    words = iter(shlex.split(line, comments=True)[1:])
    asked: dict[str, Any] = {"method": "GET", "headers": {}}
    for word in words:
        if word == "-d":
            asked |= {"method": "POST", "content": next(words)}
            asked["headers"].setdefault("Content-Type", "application/x-www-form-urlencoded")
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            asked["headers"][name] = value
        else:
            assert word.startswith(ADDRESS) and "url" not in asked, word
            asked["url"] = word
    return asked


@pytest.mark.parametrize("line", commands("curl"))
def test_the_server_answers_every_curl(line: str, serving: Running) -> None:
    asked = requested(line)
    if "content" in asked:
        assert isinstance(json.loads(asked["content"]), dict)
    answer = httpx.request(**{**asked, "url": asked["url"].replace(ADDRESS, serving.url)}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert "error" not in answer.json() or answer.json()["error"] is None


def test_what_curl_would_send_is_read_as_it_does() -> None:
    assert requested(f"curl {ADDRESS}/health")["method"] == "GET"
    asked = requested(f"""curl {ADDRESS}/x -H "A: b" -d '{{"c":\n 1}}'  # said""")
    assert (asked["method"], asked["content"], asked["headers"]["A"]) == ("POST", '{"c":\n 1}', "b")
    with pytest.raises(AssertionError):
        requested(f"curl --insecure {ADDRESS}/x")


NOT_THERE = "\n## What llama.cpp's server has besides\n"


def test_paths_of_the_server_that_the_pages_name_exist(serving: Running) -> None:
    text, _ = prose(read(ROOT / "docs" / "server.md")).split(NOT_THERE)
    named = set(re.findall(r"`(/[a-z0-9_/]+(?:\.json)?)`", text)) - {"/openapi.json"}
    described = set(serving.get("/openapi.json").json()["paths"])
    assert {"/v1/chat/completions", "/v1/responses", "/health"} <= named <= described


def test_paths_and_fields_that_are_said_not_to_be_there_are_not(serving: Running) -> None:
    _, text = prose(read(ROOT / "docs" / "server.md")).split(NOT_THERE)
    paths, fields, _ = (re.sub(r"\([^)]*\)", "", part) for part in text.strip().split("\n\n")[1:])
    absent = set(re.findall(r"`(/[a-z0-9_/-]+)`", paths)) - {"/props"}
    assert {"/completion", "/v1/embeddings", "/slots", "/v1/messages"} <= absent
    for path in absent:
        assert {serving.get(path).status_code, serving.post(path, {}).status_code} <= {404, 405}, path
    unread = set(re.findall(r"`(\w+)`", fields))
    assert {"cache_prompt", "mirostat", "n_probs", "xtc_threshold"} <= unread
    assert not unread & {*ChatRequest.model_fields, *CompletionRequest.model_fields}
