"""What the project promises about itself: style, types, imports, the built wheel."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import localspec
from localspec import errors

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PUBLIC_NAMES = {
    "LLM", "AnswerOptions", "AnswerStream", "AsyncLLM", "Chunk", "Completion", "Conversation", "EngineOptions",
    "LoadCancelled", "LoadOptions", "Loading", "LocalspecError", "MemoryEstimate", "SamplingParams",
    "Progress", "Stage", "ToolCallParser", "__version__", "memory_needed", "pull",
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


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("stray.py", "", "localspec.stray"),
        ("newroom/__init__.py", "", "localspec.newroom"),
        ("text/planted.py", "import localspec.llm", "localspec.text.planted -> localspec.llm"),
        ("text/planted.py", "import localspec.pairs.pair", "localspec.text.planted -> localspec.pairs.pair"),
        ("cli/planted.py", "import llama_cpp", "localspec.cli.planted -> llama_cpp"),
        (
            "engine/planted.py",
            "import localspec.llama.weights",
            "localspec.engine.planted -> localspec.llama",
        ),
        ("decoding/planted.py", "import ctypes", "localspec.decoding.planted -> ctypes"),
    ],
)
def test_a_planted_import_or_module_without_a_place_is_refused(
    copy: Path, file: str, line: str, complaint: str
) -> None:
    planted = copy / "localspec" / file
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(line + "\n", encoding="utf-8")
    try:
        done = run("-c", LINT_IMPORTS, "--no-cache", cwd=copy)
    finally:
        planted.unlink()
        if planted.name == "__init__.py":
            planted.parent.rmdir()
    assert done.returncode != 0
    assert complaint in done.stdout


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
    """Dotted names of the Python files of the package in `folder`."""
    files = [file.relative_to(folder).with_suffix("") for file in (folder / "localspec").rglob("*.py")]
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
    own = {"draft_tokens", "calibrate", "unload_after", "notify", "home"}
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


def test_ci_passes_the_exit_code_on(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    fake = "import os, sys; print(sys.argv[1:], os.path.basename(os.getcwd())); sys.exit(3)\n"
    (tmp_path / "scripts" / "dev.py").write_text(fake, encoding="utf-8")
    done = subprocess.run(["bash", str(tmp_path / ".ci" / "run")], cwd="/", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, f"['test'] {tmp_path.name}\n")


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


def test_the_tree_of_errors_is_drawn_whole():
    def tree(base: type) -> set[str]:
        return {base.__name__}.union(*(tree(below) for below in base.__subclasses__()))

    drawn = (errors.__doc__ or "").partition("\n\n    ")[2]
    assert set(re.findall(r"[A-Z]\w+", drawn)) - {"ValueError"} == tree(errors.LocalspecError)
