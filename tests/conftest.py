"""The real weights, fetched once by the product itself and loaded once for every test that needs them."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from localspec.compute.library import Library
from localspec.ik import binding
from localspec.ik.library import IkLlama
from localspec.llama import backend
from localspec.llama.library import LlamaCpp
from tests.storekit import Shelf, make_shelf

# A shell that starts the tests in the background has them ignore Ctrl-C, which tests send to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Several test processes share the cores: threads of the compute library that spin while they wait for one another would
# take them from each other. Read when the library is loaded.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session")
def real_paths() -> tuple[Path, Path]:
    """Target and draft of the default pair, from the user's store; pulled on first use (1.6 GB)."""
    target, draft = _pulled("qwen2.5-coder-1.5b")
    assert draft is not None
    return target, draft


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """A store of its own, and a tiny pair that is known and not in it."""
    return make_shelf(tmp_path, monkeypatch)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty store, and a test that fails where it opens a socket."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a socket was opened")

    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "store"))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module", params=[LlamaCpp, IkLlama], ids=["llama", "ik"])
def library(request: pytest.FixtureRequest) -> Library:
    """Each real compute library in turn."""
    return request.param()


@pytest.fixture(scope="module")
def computed_by(library: Library) -> dict[str, str]:
    """Options of an engine that it computes, under which greedy ids do not depend on the widths of passes."""
    return {"library": library.key, "cache_type_v": {"llama": "bf16", "ik": "f16"}[library.key]}


@pytest.fixture(scope="module")
def native(library: Library) -> ModuleType:
    """The library's module with its log and the gate of its loads."""
    return {"llama": backend, "ik": binding}[library.key]


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """The small model without a draft (98 MB)."""
    return _pulled("smollm2-135m")[0]


def _pulled(name: str) -> tuple[Path, Path | None]:
    from localspec.hub.fetching import pull
    from localspec.pairs.catalogue import pair
    from localspec.store.store import Store

    shown: set[tuple[str, int]] = set()

    def progress(event) -> None:
        tenth = 10 * event.done // max(event.total, 1)
        if (event.file, tenth) not in shown:
            shown.add((event.file, tenth))
            print(f"  {event.stage} {event.file}: {10 * tenth} %", file=sys.__stderr__, flush=True)

    return pull(pair(name), store=Store(), progress=progress)


@pytest.fixture(scope="session", params=["llama", "ik"])
def real_llm(real_paths, request) -> Iterator[object]:
    """The default pair as downloaded; one engine of each library for all tests."""
    from localspec import LLM

    with LLM.from_files(*real_paths, n_ctx=2048, draft_tokens=3, library=request.param) as llm:
        yield llm


@pytest.fixture(scope="session", params=["llama", "ik"])
def strict_llm(real_paths, tmp_path_factory, request) -> Iterator[object]:
    """The default pair in strict mode; one engine of each library for all tests.

    llama.cpp gets the target requantized to pure Q4_0, with which it is strict in wide passes too. The draft stays as
    downloaded: its rounding must not matter. A fixed number of threads saves the time in which several are compared.
    """
    from localspec import LLM
    from localspec.system.cores import physical_cores

    target, draft = real_paths
    options = {"n_ctx": 2048, "strict": True, "draft_tokens": 3, "threads": physical_cores()}
    with ExitStack() as made:
        if request.param == "llama":
            target = made.enter_context(_requantized(target, "q4_0", tmp_path_factory))
        yield made.enter_context(LLM.from_files(target, draft, library=request.param, **options))


@contextmanager
def _requantized(path, form: str, tmp_path_factory) -> Iterator[Path]:
    from localspec.llama.quantize import requantize

    file = tmp_path_factory.mktemp(form) / f"{path.stem}-{form}.gguf"
    requantize(path, file, form)
    yield file
    file.unlink()


@pytest.fixture(scope="session")
def bf16_path(smollm_path, tmp_path_factory) -> Iterator[Path]:
    """The small model in BF16 (270 MB): a target of that format."""
    with _requantized(smollm_path, "bf16", tmp_path_factory) as file:
        yield file


@pytest.fixture(scope="session", autouse=True)
def _every_report() -> Iterator[None]:
    """Tests hear every report of a pull or a load, however soon it comes after the one before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localspec.system.progress.INTERVAL", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _alone() -> Iterator[None]:
    """Passes have as many threads as on a quiet machine, whatever else runs beside the tests."""
    from tests.neighbours import Nobody

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localspec.engine.opening.Neighbours", Nobody)
        yield


@pytest.fixture(scope="session", autouse=True)
def _calibration_folder(tmp_path_factory) -> Iterator[None]:
    """What the tests measure, beside other work, must not reach the user's own calibration."""
    home = tmp_path_factory.mktemp("calibration")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localspec.engine.measured_costs.default_home", lambda: home)
        patch.setattr("localspec.engine.draft_copy.default_home", lambda: home)
        patch.setattr("localspec.engine.strict.default_home", lambda: home)
        patch.setattr("localspec.store.last_use.default_home", lambda: home)
        yield
