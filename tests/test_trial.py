"""A first load in a child process: whatever ends the child, the application lives and is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from localspec import LLM
from localspec.cli import main as command
from localspec.engine import trial
from localspec.engine.options import EngineOptions
from localspec.errors import LoadCancelled, ModelFileError, ModelLoadError
from localspec.system import child

from .tinygguf import write_llama, write_pair

OPTIONS = EngineOptions(n_ctx=64, threads=1)


# Run in the child, in the place of `trial.main`


def unguarded(order: str) -> None:
    """The load without the checks that keep this file from the library, which then ends its process."""
    from localspec.gguf import metadata

    metadata.check_limits = lambda *facts: None  # type: ignore[assignment]
    trial.main(order)


def killed(order: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hanging(order: str) -> None:
    time.sleep(600)


def telling(order: str) -> None:
    pid = Path(json.loads(order)["target"])
    part = pid.with_suffix(".part")
    part.write_text(str(os.getpid()))
    part.replace(pid)
    time.sleep(600)


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.fixture(params=["started", "spawned"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As an interpreter of its own, and by multiprocessing as in a frozen program."""
    monkeypatch.setattr(child, "_is_spawning", lambda: request.param == "spawned")
    return str(request.param)


def within(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_ENTRY", f"tests.test_trial:{entry}")


def test_a_pair_that_loads_is_loaded(tmp_path: Path, both_ways: str) -> None:
    trial.try_load(*write_pair(tmp_path), OPTIONS)


def test_a_failed_assertion_of_the_library_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both_ways: str
) -> None:
    within("unguarded", monkeypatch)
    bad = write_llama(tmp_path / "bad.gguf", extra={"llama.expert_count": 8})
    with pytest.raises(ModelLoadError) as caught:
        trial.try_load(bad, None, OPTIONS)
    assert (caught.value.code, caught.value.path) == (-signal.SIGABRT, str(bad))
    said = str(caught.value)
    assert "A first load of bad.gguf in a process of its own was ended by SIGABRT" in said
    assert "while it was loaded: " in said and "GGML_ASSERT" in said and "\n" not in said


@pytest.mark.parametrize(
    ("entry", "seconds", "code", "what"),
    [
        (
            "killed",
            600.0,
            -signal.SIGKILL,
            "was ended by SIGKILL, as a system short of memory ends one, starting",
        ),
        ("hanging", 1.0, None, "did not end in time"),
        ("absent", 600.0, 1, "ended with exit code 1"),
    ],
)
def test_other_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, seconds: float, code: int | None, what: str
) -> None:
    within(entry, monkeypatch)
    target, draft = write_pair(tmp_path)
    with pytest.raises(ModelLoadError, match=r"A first load of target\.gguf and draft\.gguf") as caught:
        trial.try_load(target, draft, OPTIONS, seconds=seconds)
    assert caught.value.code == code
    assert what in caught.value.message


def test_errors_of_the_load_are_those_of_the_load(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="There is no file") as caught:
        trial.try_load(tmp_path / "none.gguf", None, OPTIONS)
    assert caught.value.path == str(tmp_path / "none.gguf")


def test_an_application_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"n_ctx": 64, "threads": 1, "draft_tokens": 2, "home": tmp_path}
    said: list[str] = []
    with LLM.from_files(*write_pair(tmp_path), try_first=True, notify=said.append, **options) as llm:
        assert llm.generate("ab", max_tokens=2).ids
    assert said[0] == "trying the files in a process of their own"
    within("killed", monkeypatch)
    with pytest.raises(ModelLoadError, match="SIGKILL"):
        LLM.from_files(*write_pair(tmp_path), try_first=True, **options)
    LLM.from_files(*write_pair(tmp_path), **options).close()


def test_a_load_is_cancelled_while_the_child_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    within("hanging", monkeypatch)
    begun = threading.Event()
    loading = LLM.load_in_background(
        *write_pair(tmp_path),
        try_first=True,
        draft_tokens=2,
        home=tmp_path,
        on_progress=lambda progress: begun.set() if "of their own" in progress.sentence else None,
    )
    assert begun.wait(600)
    loading.cancel()
    with pytest.raises(LoadCancelled):
        loading.result(600)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_child_does_not_outlive_the_application(tmp_path: Path, both_ways: str, number: int) -> None:
    """Also where the child hangs, and its temporary files go with it."""
    pid = tmp_path / "pid"
    application = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from localspec.engine import trial\n"
        "from localspec.engine.options import EngineOptions\n"
        "from localspec.system import child\n"
        "if __name__ == '__main__':\n"
        # A test run in the background with `nohup` ignores it, and so would this program.
        "    signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"    child._is_spawning = lambda: {both_ways == 'spawned'}\n"
        "    trial._ENTRY = 'tests.test_trial:telling'\n"
        "    trial.try_load(Path(sys.argv[1]), None, EngineOptions())\n"
    )
    script, temporary = tmp_path / "application.py", tmp_path / "temporary"
    script.write_text(application)
    temporary.mkdir()
    root = str(Path(__file__).parents[1])
    started = subprocess.Popen(
        [sys.executable, str(script), str(pid)],
        env={**os.environ, "PYTHONPATH": root, "TMPDIR": str(temporary)},
    )
    until(pid.exists)
    child_pid = int(pid.read_text())
    assert list(temporary.glob("localspec-*"))
    started.send_signal(number)
    assert started.wait(60) == -number
    until(lambda: not psutil.pid_exists(child_pid) and not list(temporary.glob("localspec-*")))


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_child_has_a_time_limit_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both_ways: str
) -> None:
    monkeypatch.setattr(child, "_GRACE", -9.0)
    ended = child.run_in_child("tests.test_trial:hanging", "", 10.0, tmp_path)
    assert ended.code == (-signal.SIGALRM if both_ways == "spawned" else -signal.SIGKILL)


def test_check_loads_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    target, draft = map(str, write_pair(tmp_path))
    result = CliRunner().invoke(command, ["check", target, draft, "-c", "64", "--load"])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "Load: it works in a process of its own."
    within("killed", monkeypatch)
    result = CliRunner().invoke(command, ["check", target, draft, "--load"])
    assert result.exit_code == 1
    assert "Load: A first load of target.gguf and draft.gguf" in result.stdout
    result = CliRunner().invoke(command, ["check", target, draft, "--load", "--json"])
    assert "SIGKILL" in json.loads(result.stdout)["load_error"]
    assert CliRunner().invoke(command, ["check", target, draft]).exit_code == 0


def test_a_frozen_program_that_runs_again_in_the_place_of_a_child_ends(tmp_path: Path) -> None:
    """It did not call `freeze_support`: each copy of it would start a further one."""
    code = (
        "import sys; from pathlib import Path; from localspec.system.child import run_in_child\n"
        "sys.frozen, sys.argv = True, ['program', '--multiprocessing-fork', 'parent_pid=1']\n"
        "run_in_child('localspec.engine.trial:main', '', 60, Path('.')); print('went on')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (1, "") and "freeze_support" in done.stderr
