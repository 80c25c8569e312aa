"""The library is tried in a child: whatever it does there, the parent lives and can say what happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.compute.probe import features_of, probe_in_child, write_notes
from localspec.ggml import product
from localspec.ggml.product import computes, tried
from localspec.llama import backend
from localspec.llama.backend import TESTED, is_tested
from localspec.llama.probe import probe_library
from tests.fake_llama import fake_llama, without

SECONDS = 60.0
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def child_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the front of the child's path, before this tree."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{ROOT}")
    return folder


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        (TESTED[0], True),
        (f"{TESTED[0]}+cu124", True),
        (f"{TESTED[0]}.post1", True),
        (TESTED[1], False),
        (f"{TESTED[1]}.dev0", False),
        ("0.3.9", False),  # numbers, not letters
        ("0.2.90", False),
        ("1.0", False),
    ],
)
def test_the_range_of_versions_ends_before_its_second(version: str, tested: bool) -> None:
    assert is_tested(version) is tested


def test_the_true_library_answers() -> None:
    found = probe_library(SECONDS)
    assert (found.usable, found.stage, found.code, found.error) == (True, "done", 0, None)
    assert found.features
    assert "CPU" in found.backends
    assert any(device.name == "CPU" and device.memory[1] > 1 << 28 for device in found.devices)


def test_a_fake_library_is_believed(child_path: Path) -> None:
    fake_llama(child_path)
    found = probe_library(SECONDS)
    assert found.usable
    assert found.features == {"SSE3": 1, "AVX": 1, "AVX2": 0, "REPACK": 1}
    assert (found.backends, found.devices) == ((), ())


@pytest.mark.parametrize("name", ["SIGILL", "SIGABRT", "SIGSEGV", "SIGKILL"])
def test_a_signal_ends_the_child_alone(child_path: Path, name: str) -> None:
    fake_llama(child_path, f"import os, signal\nos.kill(os.getpid(), signal.{name})")
    found = probe_library(SECONDS)
    assert not found.usable
    assert (found.stage, found.code) == ("load", -getattr(signal, name))


def test_it_may_also_die_when_asked_for_its_facts(child_path: Path) -> None:
    fake_llama(child_path, "def llama_print_system_info():\n    import os\n    os.abort()")
    found = probe_library(SECONDS)
    assert (found.stage, found.code, found.usable) == ("ask", -signal.SIGABRT, False)


def test_last_words_are_kept_and_no_more_than_the_last(child_path: Path) -> None:
    code = "import os\nos.write(2, b'x' * 300000 + b'\\nGGML_ASSERT(cpu) failed\\n')\nos.abort()"
    fake_llama(child_path, code)
    found = probe_library(SECONDS)
    assert found.said.endswith("\nGGML_ASSERT(cpu) failed")
    assert len(found.said) <= 4000


def test_a_library_that_hangs_is_ended_with_all_that_it_started(child_path: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"""
import os, subprocess, sys, time
other = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{other.pid}}")
time.sleep(600)
"""
    fake_llama(child_path, code)
    pids.touch()
    started: list[str] = []
    limit = 1.0
    while len(started) < 2:  # longer where the processes had not begun
        found = probe_library(limit)
        assert (found.stage, found.code, found.usable) == ("load", None, False)
        started = pids.read_text().split()
        limit *= 2
    for pid in map(int, started):
        assert not _runs(pid)


def _runs(pid: int) -> bool:
    """A process that ended and was not waited for yet does not run."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_library_that_talks_for_ever_fills_neither_memory_nor_disk(child_path: Path) -> None:
    fake_llama(
        child_path, "import os\nwhile True:\n    os.write(2, b'n' * 65536)\n    os.write(1, b'o' * 65536)"
    )
    found = probe_library(3.0)
    assert found.code is None
    assert len(found.said) <= 4000


def test_noise_on_both_streams_is_no_answer(child_path: Path) -> None:
    code = """
import os
os.write(1, b'{"stage": "done", "features": {"AVX": 7}}\\n\\xff\\xfe')
os.write(2, b'ggml_cuda_init: found 0 devices\\n\\xff')
print("loaded")
"""
    fake_llama(child_path, code)
    found = probe_library(SECONDS)
    assert found.usable
    assert found.features["AVX"] == 1
    assert "found 0 devices" in found.said


@pytest.mark.parametrize("error", ["ImportError('libcuda.so.1: cannot open')", "OSError('bad image')"])
def test_a_library_that_cannot_be_imported_is_an_error_with_a_remedy(child_path: Path, error: str) -> None:
    fake_llama(child_path, f"raise {error}")
    found = probe_library(SECONDS)
    assert found.error is not None
    assert error.split("'")[1] in found.error[0]
    assert "pip install" in found.error[1]
    assert (found.stage, found.usable) == ("load", False)


def test_a_version_outside_the_tested_range(child_path: Path) -> None:
    fake_llama(child_path, version="0.2.90")
    found = probe_library(SECONDS)
    assert found.version == "0.2.90"
    assert found.error is not None
    assert "0.2.90" in found.error[0]


def test_another_layout_of_parameters(child_path: Path) -> None:
    fake_llama(child_path, "llama_context_default_params = lambda: SimpleNamespace(n_ctx=7)")
    found = probe_library(SECONDS)
    assert found.error is not None
    assert "n_ctx is 7" in found.error[0]


def test_no_library_at_all(child_path: Path) -> None:
    without(child_path, "llama_cpp", "numpy")
    found = probe_library(SECONDS)
    assert found.version is None
    assert found.error is not None
    assert "not installed" in found.error[0]


def test_a_child_that_leaves_by_itself(child_path: Path) -> None:
    fake_llama(child_path, "import os\nos._exit(3)")
    found = probe_library(SECONDS)
    assert (found.code, found.stage, found.usable) == (3, "load", False)


@pytest.mark.parametrize(
    ("text", "features"),
    [
        (b"CPU : AVX2 = 1 | FMA = 0 | ", {"AVX2": 1, "FMA": 0}),
        (
            b"CUDA : ARCHS = 890 | USE_GRAPHS = 1 | CPU : AVX = 1 | ",
            {"ARCHS": 890, "USE_GRAPHS": 1, "AVX": 1},
        ),
        (b"", {}),
        (b"nothing | = 1 | A = x | \xff = 1", {"\ufffd": 1}),
    ],
)
def test_the_line_of_features(text: bytes, features: dict[str, int]) -> None:
    assert features_of(text) == features


# What a library computes when it is tried


def libraries() -> list[object]:
    from llama_cpp import _ggml

    from localspec.ik import binding

    backend.library()
    return [_ggml.libggml, binding.library()]


@pytest.mark.parametrize("index", [0, 1])
def test_both_libraries_compute_beside_each_other(index: int) -> None:
    assert computes(libraries()[index])
    assert list(tried(libraries()[index], "x")) == [{"stage": "compute"}]


def test_wrong_numbers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "_VALUES", (1.0, 3.0, 2.0))
    _, error = tried(libraries()[1], "made-up")
    assert error["error"] == ("made-up computes wrong numbers on this machine.", "Reinstall made-up.")


def test_a_build_that_does_not_export_it_is_believed() -> None:
    import ctypes

    assert computes(ctypes.CDLL(None))


def test_it_may_also_die_when_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probe_in_child(["tests.test_probe:dying"], SECONDS)[0]
    assert (found.stage, found.code, found.usable) == ("compute", -signal.SIGABRT, False)


def dying(path: str) -> None:
    def ask(_library: object) -> Iterator[dict[str, object]]:
        yield from tried(None, "made-up")

    product.computes = lambda _lib: os.abort()
    write_notes(path, "made-up", lambda: None, ask)
