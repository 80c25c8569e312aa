"""The windows that docs/applications.md shows, on a virtual display: typed in, stopped and closed at every moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .display import virtual_display
from .dockit import ROOT, blocks, read
from .tinygguf import write_trio

EXAMPLES = ROOT / "docs" / "examples"
GUIDE = ROOT / "docs" / "applications.md"
DRIVER = Path(__file__).with_name("window_driver.py")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_trio(tmp_path_factory.mktemp("windows"))


@pytest.fixture(scope="module")
def display():
    with virtual_display() as name:
        yield name


@pytest.fixture(params=["tk", "qt"])
def drive(request, display, tmp_path):
    assert find_spec("_tkinter"), "tkinter is missing. On Debian and Ubuntu: apt-get install python3-tk."

    def drive(scenario, *models):
        """What the driver says; the process must end well and in silence."""
        env = {**os.environ, "DISPLAY": display, "QT_QPA_PLATFORM": "xcb", "XDG_RUNTIME_DIR": str(tmp_path)}
        env = {**env, "PYTHONPATH": str(ROOT), "LOCALSPEC_HOME": str(tmp_path)} | (
            {} if display else {"QT_QPA_PLATFORM": ""}
        )
        argv = [sys.executable, "-X", "dev", "-W", "error", DRIVER, request.param, scenario, *models]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return json.loads(done.stdout)

    return drive


def test_type_stream_stop_and_go_on(drive, files):
    said = drive("talk", files["deep"])
    assert said == {
        "streams": True,
        "stopped": True,
        "turns": ["hello there", "not nowx"],
        "first": "window gone",
    }


def test_stop_right_behind_the_question(drive, files):
    assert drive("stop_before", files["deep"])["status"].endswith("tokens/s")


def test_closed_while_loading_the_window_is_gone_before_anything_is_freed(drive, files):
    assert drive("close_while_loading", files["target"], files["draft"]) == {
        "loading": True,
        "first": "window gone",
    }


def test_closed_while_answering_the_window_is_gone_before_anything_is_freed(drive, files):
    assert drive("close_while_answering", files["deep"]) == {"answering": True, "first": "window gone"}


def test_what_cannot_be_loaded_is_said_in_the_window(drive, tmp_path):
    missing = tmp_path / "missing.gguf"
    assert str(missing) in drive("refused", missing)["status"]


@pytest.mark.parametrize("kind", ["tk", "qt"])
def test_the_guide_shows_the_file(kind):
    shown = [block.text for block in blocks(read(GUIDE), GUIDE.name) if block.language == "py"]
    assert read(EXAMPLES / f"window_{kind}.py") in shown
