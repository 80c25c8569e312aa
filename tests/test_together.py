"""Both libraries in one child process: whatever it comes to, the application lives, and it is tried once."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from localspec.compute.probe import write_notes
from localspec.engine import together
from localspec.engine.libraries import reference
from localspec.engine.together import why_not_together
from localspec.errors import BackendError, LoadCancelled
from localspec.system import child, cpu
from localspec.system.load_watch import LoadWatch, watching

from .fake_library import FakeLibrary

# Run in the child


def fine(path: str) -> None:
    write_notes(path, "made-up", lambda: None, lambda _: [{"features": {"AVX": 1, "AVX2": 1, "AVX512": 0}}])


def behind_llama(path: str) -> None:
    """Is content only where llama.cpp is there already."""
    assert "llama_cpp" in sys.modules
    fine(path)


def crashing(path: str) -> None:
    def load() -> None:
        os.write(2, b"GGML_ASSERT(one) failed\n")
        os.kill(os.getpid(), signal.SIGSEGV)

    write_notes(path, "made-up", load, lambda _: ())


def killed(_path: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hanging(_path: str) -> None:
    time.sleep(600)


def broken(path: str) -> None:
    def load() -> None:
        raise BackendError("made-up could not load its library: no libgomp.", "Install it.")

    write_notes(path, "made-up", load, lambda _: ())


class Made(FakeLibrary):
    """A library whose child runs a function of this file. tries: how often."""

    def __init__(self, entry: str, **facts: Any) -> None:
        super().__init__(**facts)
        self.entry, self.tries = entry, 0

    @property
    def probe_entry(self) -> str:  # type: ignore[override]
        self.tries += 1
        return f"tests.test_together:{self.entry}"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_tried", {})


@pytest.fixture(params=["started", "spawned"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an interpreter of its own, and by multiprocessing as in a frozen program."""
    monkeypatch.setattr(child, "_is_spawning", lambda: request.param == "spawned")


CRASHED = "A process that loaded the made-up library beside llama.cpp was ended by SIGSEGV: GGML_ASSERT(one) failed."
BROKEN = "made-up could not load its library: no libgomp."


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(
    ("entry", "reason"),
    [("behind_llama", ""), ("crashing", CRASHED), ("broken", BROKEN)],
)
def test_it_is_tried_once_and_its_end_is_a_sentence(tmp_path: Path, entry: str, reason: str) -> None:
    library = Made(entry)
    for home, tries in ((tmp_path, 1), (tmp_path, 1), (tmp_path / "other", 2)):
        assert why_not_together(library, home) == reason
        assert library.tries == tries
    assert why_not_together(library, tmp_path, redo=True) == reason
    assert library.tries == 3


@pytest.mark.parametrize(
    ("entry", "how"), [("killed", "was ended by SIGKILL"), ("hanging", "did not end in time")]
)
def test_what_the_moment_did_is_known_for_this_process_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, how: str
) -> None:
    monkeypatch.setattr(together, "SECONDS", 120.0 if entry == "killed" else 8.0)
    library = Made(entry)
    for _ in range(2):
        assert how in why_not_together(library, tmp_path)
    assert library.tries == 1
    together._tried.clear()
    library.entry = "fine"
    monkeypatch.setattr(together, "SECONDS", 120.0)
    assert why_not_together(library, tmp_path) == ""


def test_trying_again_corrects_what_is_known_and_makes_no_folder(tmp_path: Path) -> None:
    library, home = Made("fine"), tmp_path / "home"
    assert why_not_together(library, home, redo=True) == ""
    assert not home.exists()
    library.entry = "crashing"
    assert why_not_together(library, home) == CRASHED
    library.entry = "fine"
    assert why_not_together(library, home) == CRASHED
    assert why_not_together(library, home, redo=True) == ""
    library.entry = "crashing"
    assert why_not_together(library, home) == ""


def test_another_build_or_machine_is_tried_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_together(Made("crashing"), tmp_path) == CRASHED
    other = Made("fine", build="fake 2")
    assert (why_not_together(other, tmp_path), other.tries) == ("", 1)
    monkeypatch.setattr(together, "this_machine", lambda: ["elsewhere"])
    assert (why_not_together(other, tmp_path), other.tries) == ("", 2)


def test_what_the_processor_lacks_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instruction that is not there would end the process in the first pass, not in the load."""
    monkeypatch.setattr(cpu, "cpu_features", lambda: {"AVX": True, "AVX2": False, "AVX512": False})
    lacking = "the made-up library was compiled with AVX2, which this processor lacks."
    assert why_not_together(Made("fine"), tmp_path) == lacking
    monkeypatch.setattr(cpu, "cpu_features", lambda: None)
    assert why_not_together(Made("fine"), tmp_path, redo=True) == ""


def test_the_reference_needs_no_trial_and_what_is_missing_gets_none(tmp_path: Path) -> None:
    assert why_not_together(reference(), tmp_path) == ""

    class Missing(Made):
        @property
        def build(self) -> str:  # type: ignore[override]
            raise BackendError("made-up is not installed.", "Install it.")

        @build.setter
        def build(self, _value: str) -> None:
            pass

    missing = Missing("fine")
    assert (why_not_together(missing, tmp_path), missing.tries) == ("made-up is not installed.", 0)


def test_a_load_can_be_cancelled_meanwhile(tmp_path: Path) -> None:
    watch = LoadWatch()
    watch.cancel()
    with watching(watch), pytest.raises(LoadCancelled):
        why_not_together(Made("hanging"), tmp_path)
