"""scripts/dev.py: its pieces, and the whole of it on a stand-in project with real venvs and real pip."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.standin import FAST, ROOT, Project, start, write_wheel

sys.path.insert(0, str(ROOT / "scripts"))

import dev
import dev_compiler
import dev_display
import dev_progress


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "pro ject é"
    root.mkdir()
    return Project(root)


@pytest.fixture(scope="module")
def venv_of_another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `python -m venv` makes: it takes seconds."""
    folder = tmp_path_factory.mktemp("made") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder


@pytest.fixture
def begun(project: Project, venv_of_another: Path) -> Project:
    """A stand-in that has a venv with pip in it, and nothing else."""
    shutil.copytree(venv_of_another, project.root / ".venv", symlinks=True)
    return project


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory, venv_of_another: Path) -> Project:
    """A stand-in on which `chat` ran once; a venv is made anew in another test."""
    root = tmp_path_factory.mktemp("dev") / "project"
    root.mkdir()
    made = Project(root)
    shutil.copytree(venv_of_another, root / ".venv", symlinks=True)
    first = made.run("chat", "-p", "two words")
    assert first.returncode == 7, first.stderr
    assert "['chat', '-p', 'two words']" in first.stdout
    assert "compiling llama.cpp, 4 to 8 minutes on 2 cores, once" in first.stderr
    assert has_fast(made)
    return made


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """dev's own constants, pointed at an empty folder."""
    folder = tmp_path / ".venv"
    folder.mkdir()
    monkeypatch.setattr(dev, "VENV", folder)
    monkeypatch.setattr(dev, "STAMP", folder / "stamp.json")
    monkeypatch.setattr(dev, "LOG", folder / "log")
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    yield folder


# The whole of it


def test_second_run_starts_the_program_and_nothing_else(ready: Project) -> None:
    again = ready.run("chat", "x")
    assert (again.returncode, again.stderr) == (7, "")
    assert "['chat', 'x']" in again.stdout


def test_test_adds_its_extra_to_what_chat_left_and_runs_in_the_project(ready: Project) -> None:
    done = ready.run("test", "-k", "a b")
    assert done.returncode == 5, done.stderr
    assert done.stdout.strip() == f"['-k', 'a b'] {ready.root}"
    assert "compiling llama.cpp" not in done.stderr
    for command, code in (("test", 5), ("chat", 7), ("setup", 0)):
        after = ready.run(command)
        assert (after.returncode, "Setting up" in after.stderr) == (code, False)


def test_a_changed_pyproject_installs_again_without_compiling(ready: Project) -> None:
    ready.write_pyproject("# changed")
    done = ready.run("chat")
    assert done.returncode == 7
    assert "installing localspec" in done.stderr
    assert "compiling llama.cpp" not in done.stderr
    assert ready.run("chat").stderr == ""


def test_cmake_args_compile_again_and_are_not_lost_by_running_without_them(ready: Project) -> None:
    cuda = ready.run("chat", CMAKE_ARGS="-DGGML_CUDA=on")
    assert "compiling llama.cpp with -DGGML_CUDA=on" in cuda.stderr
    assert cuda.stdout.strip() == "['chat'] -DGGML_CUDA=on"
    for changes in ({}, {"CMAKE_ARGS": "-DGGML_CUDA=on"}):
        after = ready.run("chat", **changes)
        assert (after.stdout.strip(), after.stderr) == ("['chat'] -DGGML_CUDA=on", "")


def test_a_failed_compile_shows_the_log_and_the_remedy_and_the_next_run_heals(begun: Project) -> None:
    project = begun
    done = project.run("chat", STAND_IN_COMPILER="fails")
    assert (done.returncode, done.stdout) == (1, "")
    assert "fatal error: this compiler is a stand-in" in done.stderr
    assert "Prebuilt wheels" in done.stderr.splitlines()[-1]
    assert 'File "' + str(project.root / "scripts") not in done.stderr
    (project.root / ".venv" / "pyvenv.cfg").unlink()
    healed = project.run("chat")
    assert (healed.returncode, "making .venv" in healed.stderr) == (7, True)


def test_without_a_compiler_a_prebuilt_wheel_is_taken_and_else_the_remedy_given(begun: Project) -> None:
    project = begun
    empty = project.root.parent / "empty"
    empty.mkdir()
    refused = project.run("chat", PATH=str(empty), **{"PROGRAMFILES(X86)": str(empty)})
    assert refused.returncode == 1
    assert "no C++ compiler was found" in refused.stderr.splitlines()[-1]
    write_wheel(project.packages, "llama_cpp_python", "0.3.36", {"llama_cpp.py": "ARGS = 'prebuilt'"})
    taken = project.run("chat", PATH=str(empty), **{"PROGRAMFILES(X86)": str(empty)})
    assert (taken.returncode, taken.stdout.strip()) == (7, "['chat'] prebuilt")
    assert "making .venv" not in taken.stderr


def has_fast(project: Project) -> bool:
    return any((project.root / ".venv").glob(f"**/{FAST}.py"))


def test_the_second_library_is_installed_from_its_wheel_and_is_not_needed(
    begun: Project, tmp_path: Path
) -> None:
    project = begun
    wheel = project.packages / f"{FAST}-0.1.5-py3-none-any.whl"
    wheel.rename(tmp_path / wheel.name)
    source = {"setup.py": "raise SystemExit('it is never compiled')"}
    with tarfile.open(project.packages / f"{FAST}-0.1.5.tar.gz", "w:gz") as archive:
        for name, text in source.items():
            member = tarfile.TarInfo(f"{FAST}-0.1.5/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    without = project.run("chat")
    assert (without.returncode, has_fast(project)) == (7, False)
    assert "set up without it" in without.stderr.splitlines()[-1]
    assert "never compiled" not in without.stderr
    assert project.run("chat").stderr == "", "nor asked for at every start"
    project.write_pyproject("", where="python_version < '3'")
    elsewhere = project.run("chat")
    assert (elsewhere.returncode, "ik-llama" in elsewhere.stderr) == (7, False)
    (tmp_path / wheel.name).rename(wheel)
    project.write_pyproject("# changed")
    assert (project.run("chat").returncode, has_fast(project)) == (7, True)


@pytest.mark.parametrize("args", [(), ("chta",), ("--verbose",)])
def test_a_wrong_command_prints_the_usage_and_ends_with_2(project: Project, args: tuple[str, ...]) -> None:
    done = project.run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: python3 scripts/dev.py" in done.stderr
    assert project.run("--help").returncode == 0


# Ctrl-C, as a terminal sends it to the whole process group


def interrupt_at(child: subprocess.Popen[str], line: str) -> str:
    """Send Ctrl-C once `line` has been printed; return everything printed."""
    assert child.stdout
    said = ""
    while line not in said:
        read = child.stdout.readline()
        assert read, said
        said += read
    os.killpg(child.pid, signal.SIGINT)
    return said + child.communicate(timeout=60)[0]


def test_ctrl_c_in_the_program_is_the_programs_own(ready: Project) -> None:
    child = ready.start("chat", "wait")
    said = interrupt_at(child, "waiting")
    assert (child.returncode, "Traceback" in said) == (130, False)
    assert said.endswith("the answer so far\n")


def test_ctrl_c_while_compiling_stops_without_a_traceback(begun: Project) -> None:
    child = begun.start("setup", STAND_IN_COMPILER="never ends")
    said = interrupt_at(child, "compiling llama.cpp")
    assert (child.returncode, "Traceback" in said) == (130, False)
    assert said.endswith("Stopped. The same command goes on from here.\n")


def test_waiting_for_a_program_lets_ctrl_c_pass(tmp_path: Path) -> None:
    """What Windows does in place of exec: the parent stays and ends with the exit code of the child."""
    inner = tmp_path / "inner.py"
    inner.write_text(
        dedent("""
        import sys, time
        try:
            print("waiting", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            sys.exit(9)
    """)
    )
    code = f"import sys, dev; sys.exit(dev.wait_for([sys.executable, {str(inner)!r}]))"
    argv, env = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    child = start(argv, env)
    said = interrupt_at(child, "waiting")
    assert (child.returncode, said) == (9, "waiting\n")


# The pieces


@pytest.mark.parametrize("version", [(3, 8), (3, 10)])
def test_an_old_python_is_refused_with_a_sentence(version: tuple[int, int]) -> None:
    with pytest.raises(dev.SetupError, match=r"needs Python 3\.11 or newer, and this is Python 3\.(8|10) "):
        dev.check_python(version)
    for good in ((3, 11), (3, 14), (4, 0)):
        dev.check_python(good)


def test_a_python_without_venv_names_the_debian_package(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ensurepip" else object())
    with pytest.raises(dev.SetupError, match=rf"sudo apt install python3\.{sys.version_info[1]}-venv"):
        dev.make_venv()
    assert list(venv.iterdir()) == []


def test_a_program_of_a_venv_lies_where_the_system_keeps_it(venv: Path) -> None:
    assert dev.program("localspec", "nt") == venv / "Scripts" / "localspec.exe"
    assert dev.program("localspec", "posix") == venv / "bin" / "localspec"


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"key": 1}', b"\xff"])
def test_a_damaged_stamp_means_that_nothing_was_set_up(venv: Path, data: bytes) -> None:
    (venv / "stamp.json").write_bytes(data)
    assert not dev.is_ready("")


def test_the_stamp_depends_on_python_extra_folder_and_cmake_args(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cfg(version: str) -> None:
        (venv / "pyvenv.cfg").write_text(f"home = x = y\nversion = {version}\n")

    cfg("3.11.7")
    dev.program("python").parent.mkdir()
    dev.program("python").touch()
    dev.write_stamp(key=dev.setup_key(), extras=[""])
    assert (dev.is_ready(""), dev.is_ready("test")) == (True, False)
    dev.write_stamp(extras=["", "test"])
    assert dev.is_ready("test")
    assert json.loads(dev.STAMP.read_text()) == {"key": dev.setup_key(), "extras": ["", "test"]}
    cfg("3.12.0")
    assert not dev.is_ready("")
    cfg("3.11.9")
    assert dev.is_ready("")
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on")
    assert not dev.is_ready("")
    monkeypatch.delenv("CMAKE_ARGS")
    dev.program("python").unlink()
    assert not dev.is_ready("")


def test_the_requirement_is_the_one_of_pyproject() -> None:
    assert dev.llama_requirement() in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert dev.llama_requirement().startswith("llama-cpp-python>=")


def test_the_second_library_is_pinned_and_asked_for_only_where_wheels_of_it_exist() -> None:
    from packaging.requirements import Requirement

    requirement = Requirement(dev.fast_requirement())
    assert (requirement.name, str(requirement.specifier)) == (dev.FAST, "==0.1.5")
    assert requirement.marker is not None
    for system, machine, python, there in (
        ("linux", "x86_64", "3.11", True),
        ("linux", "aarch64", "3.13", True),
        ("darwin", "arm64", "3.12", True),
        ("win32", "AMD64", "3.12", True),
        ("linux", "x86_64", "3.14", False),
        ("linux", "riscv64", "3.11", False),
        ("darwin", "x86_64", "3.11", False),
        ("win32", "ARM64", "3.11", False),
    ):
        facts = {"sys_platform": system, "platform_machine": machine, "python_version": python}
        facts["platform_python_implementation"] = "CPython"
        assert requirement.marker.evaluate(facts) is there, facts


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32", "freebsd14"])
def test_every_system_is_told_how_to_get_a_compiler(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "PROGRAMFILES(X86)"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert dev_compiler.find_compiler(platform) is None
    sentence = dev_compiler.no_compiler(platform)
    assert dev_compiler.REMEDIES.get(platform, "g++") in sentence
    assert "Prebuilt wheels" in sentence


def test_what_windows_in_tests_need_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_display.shutil, "which", lambda _name: "Xvfb")
    monkeypatch.setattr(dev_display, "find_library", lambda name: None if name == "xcb-cursor" else name)
    assert dev_display.no_display("linux").endswith("apt-get install libxcb-cursor0")
    monkeypatch.setattr(dev_display.shutil, "which", lambda _name: None)
    assert "apt-get install xvfb libxcb-cursor0" in dev_display.no_display("linux")
    assert dev_display.no_display("darwin") == ""
    installed = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert [name for name in ("xvfb", *dev_display.LIBRARIES.values()) if name not in installed] == []


def test_a_compiler_is_found_by_its_variable_or_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(name: str, text: str = "") -> Path:
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\necho {text}\n")
        file.chmod(0o755)
        return file

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "my-c++ -O2")
    by_name = program("g++")
    assert dev_compiler.find_compiler("linux") == str(by_name)
    by_variable = program("my-c++")
    assert dev_compiler.find_compiler("linux") == str(by_variable)
    program("xcode-select", "/Library/Developer")
    assert dev_compiler.find_compiler("darwin") == "/Library/Developer"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_live_line() -> None:
    stream = Terminal()
    progress = dev_progress.Progress(stream)
    for seconds in (0.0, 1.0, 80.0):
        progress.show("compiling", seconds)
    progress.close("done after 1:21")
    lines = stream.getvalue().split("\r")
    assert [line.strip() for line in lines if line.strip()] == [
        "compiling ...",
        "compiling; 0:01 so far",
        "compiling; 1:20 so far",
        "compiling: done after 1:21",
    ]
    assert stream.getvalue().count("\n") == 1


def test_elsewhere_a_line_comes_at_each_change_and_every_30_seconds() -> None:
    stream = io.StringIO()
    progress = dev_progress.Progress(stream)
    for second in range(62):
        progress.show("fetching" if second < 5 else "compiling", second)
    progress.close("failed after 1:02")
    assert stream.getvalue().splitlines() == [
        "fetching ...",
        "compiling; 0:05 so far",
        "compiling; 0:35 so far",
        "compiling: failed after 1:02",
    ]


def test_a_child_that_ignores_ctrl_c_is_killed_at_the_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def second_ctrl_c(*_args: object, **_settings: object) -> None:
        raise KeyboardInterrupt

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(dev_progress, "poll", second_ctrl_c)
    dev_progress.stop(child)
    assert child.returncode not in (None, 0)


@pytest.mark.parametrize(
    ("codes", "expected", "runs"),
    [([0, 0], 0, 2), ([1, 0], 1, 2), ([0, 1], 1, 2), ([2], 2, 1), ([130], 130, 1)],
)
def test_all_tests_are_two_runs_of_which_a_stopped_one_is_the_last(codes, expected, runs, monkeypatch):
    """The weights want both cores: their tests run alone, also after failures, and not after Ctrl-C."""
    calls: list[list[str]] = []

    def wait_for(argv: list[str]) -> int:
        calls.append(argv[3:])
        return codes[len(calls) - 1]

    monkeypatch.setattr(dev, "wait_for", wait_for)
    assert dev.run_tests([]) == expected
    assert calls == [["-m", "not real", "-n", "2"], ["-m", "real"]][:runs]


def test_with_arguments_there_is_one_run_with_them(monkeypatch):
    calls: list[list[str]] = []
    monkeypatch.setattr(dev, "launch", lambda argv: calls.append(argv[1:]) or 0)
    assert dev.run_tests(["-k", "law"]) == 0
    assert calls == [["-m", "pytest", "-k", "law"]]


def test_soak_runs_the_soak_of_this_project_with_the_extra_for_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(dev, "setup", called.append)
    monkeypatch.setattr(dev, "launch", lambda argv: called.append(argv) or 3)
    assert dev.main(["soak", "10", "--http"]) == 3
    _python, script, *rest = called[1]
    assert called[0] == "test" and rest == ["10", "--http"]
    assert Path(script).is_file() and Path(script).name == "soak.py"
