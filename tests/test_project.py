"""What the project promises about itself: style, types, imports, the built wheel."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import localspec
from localspec import errors

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PUBLIC_NAMES = {
    "LLM", "AnswerOptions", "AnswerStream", "AsyncLLM", "Chunk", "Completion", "Conversation", "EngineOptions",
    "LoadCancelled", "LoadOptions", "Loading", "LocalspecError", "MemoryEstimate", "SamplingParams",
    "BenchResult", "Progress", "Stage", "ToolCallParser", "__version__", "bench", "memory_needed", "pull",
}  # fmt: skip
LINT_IMPORTS = (
    "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
)
NOT_SOURCE = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "dist", "*.gguf", "*.part", "venv"
)


def run(*args: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments; what it printed, both streams in one, is `stdout`."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def passes(*args: str | Path, cwd: Path = ROOT) -> str:
    done = run(*args, cwd=cwd)
    assert done.returncode == 0, f"{' '.join(map(str, args))}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree, where a check may write and plant faults."""
    folder = tmp_path_factory.mktemp("copy") / "localspec"
    shutil.copytree(ROOT, folder, ignore=NOT_SOURCE)
    return folder


# Style, types, imports


def test_ruff_finds_nothing() -> None:
    passes("-m", "ruff", "check", ".")


def test_code_is_formatted() -> None:
    passes("-m", "ruff", "format", "--check", ".")


def test_types_hold() -> None:
    passes("-m", "mypy", "--strict")


def test_the_made_up_compute_library_is_one_by_its_types() -> None:
    """So that the tests on it say something of the protocols, which it must not fall short of."""
    passes("-m", "mypy", "--strict", "tests/fake_library.py")


def test_imports_go_down_only() -> None:
    passes("-c", LINT_IMPORTS, "--no-cache")


PLANTED = {
    "stray.py": {"": "localspec.stray"},
    "newroom/__init__.py": {"": "localspec.newroom"},
    "text/planted.py": {
        "import localspec.llm": "localspec.text.planted -> localspec.llm",
        "import localspec.pairs.pair": "localspec.text.planted -> localspec.pairs.pair",
    },
    "cli/planted.py": {"import llama_cpp": "localspec.cli.planted -> llama_cpp"},
    "engine/planted.py": {"import localspec.llama.weights": "localspec.engine.planted -> localspec.llama"},
    "decoding/planted.py": {"import ctypes": "localspec.decoding.planted -> ctypes"},
}
"""File -> lines -> what is said of each. All are planted at once, for reading all imports takes seconds."""


def test_planted_imports_and_modules_without_a_place_are_refused(copy: Path) -> None:
    files = [copy / "localspec" / name for name in PLANTED]
    for file, lines in zip(files, PLANTED.values(), strict=True):
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    try:
        done = run("-c", LINT_IMPORTS, "--no-cache", cwd=copy)
    finally:
        for file in files:
            file.unlink()
            if file.name == "__init__.py":
                file.parent.rmdir()
    assert done.returncode != 0
    wanted = [complaint for lines in PLANTED.values() for complaint in lines.values()]
    assert [complaint for complaint in wanted if complaint not in done.stdout] == []


# The wheel


@pytest.fixture(scope="module")
def installed(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing in it but the built wheel, installed."""
    folder = tmp_path_factory.mktemp("installed")
    passes("-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", ".", cwd=copy)
    (wheel,) = (folder / "dist").iterdir()
    passes("-m", "pip", "install", "--no-deps", "--no-index", "--target", folder / "lib", wheel)
    return folder / "lib"


def ask(installed: Path, code: str) -> object:
    """What `code` assigns to `answer`, in a fresh interpreter that finds localspec in `installed` only."""
    start = f"import json, sys; sys.path.insert(0, {str(installed)!r}); import localspec"
    check = "assert localspec.__file__.startswith(sys.path[0]), localspec.__file__"
    printed = passes("-I", "-c", f"{start}\n{check}\n{code}\nprint(json.dumps(answer))", cwd=installed)
    return json.loads(printed.splitlines()[-1])


def modules(folder: Path) -> set[str]:
    """Dotted names of the Python files of the package in `folder`, but those with names that nobody can import."""
    files = [
        file.relative_to(folder).with_suffix("")
        for file in (folder / "localspec").rglob("*.py")
        if file.stem.isidentifier()
    ]
    return {".".join(file.parts).removesuffix(".__init__") for file in files}


def test_the_wheel_holds_every_module_and_each_can_be_imported(installed: Path) -> None:
    expected = modules(ROOT)
    assert modules(installed) == expected
    code = f"""
import importlib
for name in {sorted(expected - {"localspec.__main__"})!r}:
    importlib.import_module(name)
answer = "llama_cpp" in sys.modules
"""
    assert ask(installed, code) is False


def test_the_wheel_finds_its_pairs(installed: Path) -> None:
    code = "from localspec.pairs.catalogue import pairs; answer = sorted(pair.name for pair in pairs())"
    names = sorted(file.stem for file in (ROOT / "models").glob("*.toml"))
    assert ask(installed, code) == names
    assert {"qwen2.5-coder-1.5b", "smollm2-135m"} <= set(names)


def test_the_wheel_finds_its_prompts(installed: Path) -> None:
    code = "from localspec.measure.prompts import builtin_prompts; answer = len(builtin_prompts())"
    assert ask(installed, code) >= 24


def test_the_wheel_is_typed_licensed_and_has_the_version_it_says(installed: Path) -> None:
    assert (installed / "localspec" / "py.typed").is_file()
    (info,) = installed.glob("localspec-*.dist-info")
    assert (info / "licenses" / "LICENSE").is_file()
    assert info.name == f"localspec-{localspec.__version__}.dist-info"
    assert ask(installed, "answer = localspec.__version__") == PYPROJECT["project"]["version"]


# What the outside sees


def test_the_public_names_are_these_and_all_of_them_load() -> None:
    assert set(localspec.__all__) == PUBLIC_NAMES
    assert len(localspec.__all__) == len(PUBLIC_NAMES)
    assert all(hasattr(localspec, name) for name in PUBLIC_NAMES)
    assert set(dir(localspec)) >= PUBLIC_NAMES


def test_an_editor_shows_every_option_of_the_loaders() -> None:
    own = {"draft_tokens", "calibrate", "unload_after", "notify", "on_progress", "home"}
    shown = localspec.LoadOptions.__annotations__
    assert set(shown) == own | {field.name for field in dataclasses.fields(localspec.EngineOptions)}
    loaders = (localspec.LLM.load, localspec.LLM.load_in_background, localspec.LLM.from_pair, localspec.LLM.from_hub,
               localspec.LLM.from_folder, localspec.LLM.from_files, localspec.AsyncLLM.load)  # fmt: skip
    assert {inspect.signature(loader).parameters["options"].annotation for loader in loaders} == {
        "Unpack[LoadOptions]"
    }


@pytest.mark.parametrize("args", [None, ["--help"], ["--version"], ["chat", "--help"], ["bench", "--help"]])
def test_importing_and_asking_for_help_is_light(args: list[str] | None) -> None:
    """In a fresh interpreter neither of the heavy packages is loaded."""
    start = "import runpy; runpy.run_module('localspec', run_name='__main__')" if args else "import localspec"
    heavy = "sorted({'llama_cpp', 'numpy', 'huggingface_hub'} & set(sys.modules))"
    code = f"import atexit, sys\natexit.register(lambda: print('loaded:', {heavy}))\n{start}"
    assert passes("-c", code, *(args or [])).splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize("installed", [True, False])
def test_ci_passes_the_exit_code_on(tmp_path: Path, installed: bool) -> None:
    """And installs what windows need where it is missing; here by stand-ins, which install nothing."""
    (tmp_path / "bin").mkdir()
    for name, line in (("dpkg-query", f"exit {int(not installed)}"), ("apt-get", 'echo "$1" >>"$ASKED"')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    asked = tmp_path / "asked"
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    (tmp_path / ".ci").mkdir()
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    fake = "import os, sys; print(sys.argv[1:], os.path.basename(os.getcwd())); sys.exit(3)\n"
    (tmp_path / "scripts" / "dev.py").write_text(fake, encoding="utf-8")
    done = subprocess.run(
        ["bash", str(tmp_path / ".ci" / "run")],
        cwd="/",
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path, "ASKED": str(asked)},
    )
    assert (done.returncode, done.stdout) == (3, f"['test'] {tmp_path.name}\n")
    assert installed or asked.read_text().split() == ["update", "install"]
    assert not (installed and asked.exists())


def test_the_changelog_keeps_its_format() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^##+ (.*)$", text, flags=re.MULTILINE)
    assert headings[:2] == ["[Unreleased]", "Added"]
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert all(heading in kinds or heading.startswith("[") for heading in headings)


# What is in the tree


def source_files() -> list[Path]:
    """Files that git has or would take; in a tree without git, all but hidden and built ones."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        built = {"__pycache__", "build", "dist", "venv"}
        files = [file for file in ROOT.rglob("*") if not built & set(file.relative_to(ROOT).parts)]
        files = [
            file for file in files if not any(part.startswith(".") for part in file.relative_to(ROOT).parts)
        ]
    return [file for file in files if file.is_file()]


def test_no_large_or_model_file_is_in_the_tree() -> None:
    files = source_files()
    assert ROOT / "pyproject.toml" in files
    assert [
        file for file in files if file.stat().st_size > 1_000_000 or file.suffix in (".gguf", ".part")
    ] == []


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    personal = re.compile("|".join(f"/{folder}/" for folder in ("work", "root", "home/[a-z]", "Users/[a-z]")))
    found = [file for file in source_files() if personal.search(file.read_text(encoding="utf-8"))]
    assert found == []


def test_every_package_of_the_tree_is_in_pyproject() -> None:
    packages = {
        ".".join(file.parent.relative_to(ROOT).parts) for file in (ROOT / "localspec").rglob("__init__.py")
    }
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == packages | {"localspec_models"}


def sentences(tree: ast.AST) -> Iterator[str]:
    """The texts with blanks in it, f-strings with {} for their values, but docstrings and what is named `command`."""
    for node in ast.iter_child_nodes(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or re.search("command|readme", name_of(node).lower()):
            continue
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            yield from sentences(node)
        if " " in text:
            yield text


def name_of(node: object) -> str:
    """Under what a node stands: an argument's, a variable's or a function's name."""
    if isinstance(node, ast.Assign):
        return " ".join(ast.unparse(target) for target in node.targets)
    return next(
        (str(name) for key in ("arg", "name", "id", "attr") if (name := getattr(node, key, None))), ""
    )


def test_who_uses_the_library_is_not_told_what_to_type() -> None:
    """Below the command line no sentence names a command or a flag, but as the `command` of an error."""
    from localspec.cli.app import COMMANDS, main

    flags: set[str] = set()
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        below = list(command.commands.values()) if isinstance(command, click.Group) else []
        for each in (command, *below):
            flags |= {
                flag for parameter in each.params for flag in (*parameter.opts, *parameter.secondary_opts)
            }
    words = sorted((re.escape(flag) for flag in flags if flag.startswith("-")), key=len, reverse=True)
    typed = re.compile(rf"localspec ({'|'.join(COMMANDS)})\b|(?<![\w-])({'|'.join(words)})(?![\w-])")
    found = []
    for file in sorted((ROOT / "localspec").rglob("*.py")):
        room = file.relative_to(ROOT / "localspec").parts[0]
        if room not in ("cli", "doctor"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            told = [text.replace("-m ensurepip", "") for text in sentences(tree)]
            found += [f"{file.name}: {text}" for text in told if typed.search(text)]
    assert found == []
    assert (
        typed.search("Run `localspec pull x`.")
        and typed.search("(n_ctx, -c)")
        and typed.search("--no-draft goes")
    )


def test_who_types_is_not_told_which_argument_to_pass() -> None:
    """A remedy that names a call or a value of Python has other words for the command line."""
    called = re.compile(r"localspec\.\w|\b\w+=(True|False|None|\")")
    found = []
    for file in sorted((ROOT / "localspec").rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and name_of(call.func).endswith(
                ("Error", "Short", "Downloaded", "Request")
            ):
                told = [text for argument in call.args for text in sentences(ast.Expr(argument))]
                worded = any(keyword.arg == "command" for keyword in call.keywords)
                found += [f"{file.name}: {text}" for text in told if called.search(text) and not worded]
    assert found == []


def test_a_remedy_has_words_for_the_command_line_where_they_differ() -> None:
    plain = errors.LocalspecError("It is wrong.", "Mend it.", name="x")
    other = errors.PromptTooLong("It is long.", "Load with n_ctx.", command="Give -c.", n_ctx=4)
    assert (str(plain), plain.command) == ("It is wrong. Mend it.", "Mend it.")
    assert (str(other), other.command, other.n_ctx) == ("It is long. Load with n_ctx.", "Give -c.", 4)
    again = pickle.loads(pickle.dumps(other.with_message("It is longer.", num_tokens=5)))
    assert type(again) is errors.PromptTooLong and again.data == {"n_ctx": 4, "num_tokens": 5}
    assert (again.message, again.remedy, again.command) == ("It is longer.", "Load with n_ctx.", "Give -c.")


def test_the_tree_of_errors_is_drawn_whole():
    def tree(base: type) -> set[str]:
        return {base.__name__}.union(*(tree(below) for below in base.__subclasses__()))

    drawn = (errors.__doc__ or "").partition("\n\n    ")[2]
    assert set(re.findall(r"[A-Z]\w+", drawn)) - {"ValueError"} == tree(errors.LocalspecError)
