"""The real weights, fetched once by the product itself and loaded once for every test that needs them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.storekit import Shelf, make_shelf

# A shell that starts the tests in the background has them ignore Ctrl-C, which tests send to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """The small model without a draft (98 MB)."""
    return _pulled("smollm2-135m")[0]


def _pulled(name: str) -> tuple[Path, Path | None]:
    from localspec.hub.pull import pull
    from localspec.pairs.catalogue import pair
    from localspec.store.store import Store

    shown: set[tuple[str, int]] = set()

    def progress(event) -> None:
        tenth = 10 * event.done // max(event.total, 1)
        if (event.file, tenth) not in shown:
            shown.add((event.file, tenth))
            print(f"  {event.phase} {event.file}: {10 * tenth} %", file=sys.__stderr__, flush=True)

    return pull(pair(name), store=Store(), progress=progress)


@pytest.fixture(scope="session")
def real_llm(real_paths) -> Iterator[object]:
    """The default pair as downloaded; one engine for all tests."""
    from localspec import LLM

    with LLM.from_files(*real_paths, n_ctx=2048, draft_tokens=3) as llm:
        yield llm


@pytest.fixture(scope="session")
def q4_0_paths(real_paths, tmp_path_factory) -> Iterator[list[Path]]:
    """The default pair requantized to pure Q4_0."""
    with _requantized(real_paths, "q4_0", tmp_path_factory) as files:
        yield files


@pytest.fixture(scope="session")
def strict_llm(q4_0_paths) -> Iterator[object]:
    """The pure Q4_0 pair in strict mode; one engine for all tests."""
    from localspec import LLM

    with LLM.from_files(*q4_0_paths, n_ctx=2048, strict=True, draft_tokens=3) as llm:
        yield llm


@contextmanager
def _requantized(paths, form: str, tmp_path_factory) -> Iterator[list[Path]]:
    from localspec.llama.quantize import requantize

    folder = tmp_path_factory.mktemp(form)
    files = []
    for path in paths:
        files.append(folder / path.name.replace("q4_k_m", form))
        requantize(path, files[-1], form)
    yield files
    for file in files:
        file.unlink()


@pytest.fixture(scope="session")
def bf16_path(real_paths, tmp_path_factory) -> Iterator[Path]:
    """The default pair's draft in BF16 (1 GB): a small target of that format."""
    with _requantized(real_paths[1:], "bf16", tmp_path_factory) as files:
        yield files[0]


@pytest.fixture(scope="session", autouse=True)
def _calibration_folder(tmp_path_factory) -> Iterator[None]:
    """What the tests measure, beside other work, must not reach the user's own calibration."""
    home = tmp_path_factory.mktemp("calibration")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localspec.calibration.default_home", lambda: home)
        patch.setattr("localspec.preparation.default_home", lambda: home)
        patch.setattr("localspec.strictness.default_home", lambda: home)
        patch.setattr("localspec.store.usage.default_home", lambda: home)
        yield
