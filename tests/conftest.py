"""The real weights, fetched once by the product itself and loaded once for every test that needs them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell that starts the tests in the background has them ignore Ctrl-C, which tests send to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_paths() -> tuple[Path, Path]:
    """Target and draft of the default pair, from the user's store; pulled on first use (1.6 GB)."""
    target, draft = _pulled("qwen2.5-coder-1.5b")
    assert draft is not None
    return target, draft


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """The small model without a draft (98 MB)."""
    return _pulled("smollm2-135m")[0]


def _pulled(name: str) -> tuple[Path, Path | None]:
    from localspec.hub.catalogue import pair
    from localspec.hub.pull import pull
    from localspec.hub.store import Store

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
def strict_llm(real_paths, tmp_path_factory) -> Iterator[object]:
    """The default pair requantized to pure Q4_0, V cache in BF16: rows do not depend on the width of a pass."""
    from localspec import LLM
    from localspec.llama.quantize import requantize

    folder = tmp_path_factory.mktemp("q4_0")
    files = []
    for path in real_paths:
        files.append(folder / path.name.replace("q4_k_m", "q4_0"))
        requantize(path, files[-1], "q4_0")
    with LLM.from_files(*files, n_ctx=2048, cache_type_v="bf16", draft_tokens=3) as llm:
        yield llm
    for file in files:
        file.unlink()


@pytest.fixture(scope="session", autouse=True)
def _calibration_folder(tmp_path_factory) -> Iterator[None]:
    """What the tests measure, beside other work, must not reach the user's own calibration."""
    home = tmp_path_factory.mktemp("calibration")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localspec.calibration.default_home", lambda: home)
        patch.setattr("localspec.preparation.default_home", lambda: home)
        yield
