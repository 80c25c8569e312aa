"""Ctrl-C and other signals whose handlers raise, while foreign code runs and calls back: nothing is lost."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localspec import LLM
from localspec.compute.library import Library
from localspec.gguf.metadata import read_metadata
from localspec.system.signals import signals_noted
from tests.tinygguf import write_trio

__test__ = sys.platform != "win32"
ROOT = Path(__file__).parents[1]
SECONDS = 60
SLOW = """
import time
from localspec.cli import main
from localspec.llama import backend
from localspec.llama.weights import Weights
make = backend._log_callback
kept = []
def make_slow(lib):
    callback = make(lib)
    @lib.llama_log_callback
    def slowly(level, text, data):
        if len(kept) == 2:
            print("loading", flush=True)
        kept.append(1)
        time.sleep(0.02)
        callback(level, text, data)
    kept.extend((callback, slowly))
    return slowly
backend._log_callback = make_slow
main()
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_trio(tmp_path_factory.mktemp("models"))


class Alarm(BaseException):
    """Raised by an application's own handler; an `Exception` may be dropped wherever a library drops those."""


def ring(_number: int, _frame: object) -> None:
    raise Alarm


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.2, 0.5])
def test_ctrl_c_ends_a_load_at_any_moment(files: dict[str, Path], delay: float, tmp_path: Path) -> None:
    """Also where it comes between the instructions of a callback, which is where most of them come."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "chat", str(files["target"]), "-p", "hi", "-n", "400", "--ignore-eos"],
        env={**os.environ, "LOCALSPEC_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, errors
    assert "Exception ignored" not in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_what_an_applications_handler_raises_ends_a_load_at_any_moment(
    files: dict[str, Path], library: Library, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Most come while C runs: the handler then runs in a callback's first instruction."""
    before = signal.signal(number, ring)
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    facts = read_metadata(files["target"])
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    try:
        for moment in range(40):
            sender = threading.Timer(moment / 2000, signal.pthread_kill, [main_thread, number])
            with pytest.raises(Alarm):
                sender.start()
                with contextlib.closing(library.open_weights(facts)):
                    sender.join()
                    time.sleep(1)  # it comes here at the latest
            sender.join()
        assert signal.getsignal(number) is ring and not [
            lost for lost in unraisable if lost.exc_type is Alarm
        ]
    finally:
        signal.signal(number, before)


def test_ctrl_c_in_a_callback_of_a_pass_is_raised_after_it(
    files: dict[str, Path], native: ModuleType, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library logs in a pass, and Ctrl-C comes there; the engine can be used afterwards."""
    with LLM.from_files(files["target"], n_ctx=256, library=library.key) as llm:
        expected = llm.generate("abc", temperature=0, max_tokens=4, ignore_eos=True).ids
        lib = native.library()

        def press() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

        logged = ctypes.CFUNCTYPE(None)(press)
        decode = lib.llama_decode

        def logging_decode(*arguments: object) -> int:
            logged()
            return int(decode(*arguments))

        monkeypatch.setattr(lib, "llama_decode", logging_decode)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("xyz", temperature=0, max_tokens=4, ignore_eos=True)
        monkeypatch.undo()
        assert llm.generate("abc", temperature=0, max_tokens=4, ignore_eos=True).ids == expected


def test_a_handler_that_a_handler_puts_in_place_stays() -> None:
    def once(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Alarm

    before = signal.signal(signal.SIGTERM, once)
    try:
        reached = []
        with pytest.raises(Alarm), signals_noted() as noted:
            signal.raise_signal(signal.SIGTERM)
            reached.append(len(noted))
        assert reached == [1] and signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_touch_no_handler() -> None:
    seen: list[object] = []

    def look() -> None:
        with signals_noted():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_ctrl_c_while_a_class_is_made_has_the_same_exit_code(tmp_path: Path) -> None:
    code = (
        "import sys, localspec.cli, localspec.__main__ as entry\n"
        "def command(**options):\n"
        "    try:\n"
        "        exec('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(130)\n"
        "localspec.cli.main = command\n"
        "entry.main()\n"
    )
    (tmp_path / "entered.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "-m", "entered"], env=environment)
    assert done.returncode == 130
