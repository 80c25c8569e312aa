"""The PyPI source with real pip, against wheels in a folder and against a misbehaving index."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import AccessDenied, DiskFull, DownloadError, FileMissing, SourceUnreachable
from localspec.hub import pip, pypi
from localspec.hub.pypi import WheelFetcher
from localspec.pairs.catalogue import ModelFile, WheelSource
from localspec.system.partial import Partial
from localspec.system.progress import Reporter
from tests.hubkit import Recorder, content, make_wheels, model_file, write_wheel

BODY = content(2, 300_000)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the whole package index."""
    folder = tmp_path / "wheels"
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def copied(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts a copy of the wheel in place of pip, for faults inside a wheel; lists what was asked for."""
    asked: list[str] = []

    def copy(requirement: str, folder: Path, *_: object) -> Path:
        asked.append(requirement)
        name, version = requirement.replace("-", "_").split("==")
        return Path(shutil.copy(wheels / f"{name}-{version}-py3-none-any.whl", folder))

    monkeypatch.setattr(pypi, "download_wheel", copy)
    return asked


@pytest.fixture
def partial(tmp_path: Path) -> Partial:
    folder = tmp_path / "pärtial"
    folder.mkdir()
    return Partial(folder / "0123.part", len(BODY))


def fetch(source: WheelSource, partial: Partial, recorder: Recorder | None = None) -> None:
    file = model_file("model.gguf", BODY, source)
    WheelFetcher().fetch(file, source, partial, Reporter(file.file, file.bytes, recorder))


def test_wheels_give_the_file(wheels: Path, partial: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    lying_there: list[int] = []

    def watched(*args: Any) -> Path:
        wheel = pip.download_wheel(*args)
        lying_there.append(len(list(partial.path.parent.rglob("*.whl"))))
        return wheel

    monkeypatch.setattr(pypi, "download_wheel", watched)
    fetch(make_wheels(wheels, BODY, 3), partial, recorder)
    assert lying_there == [1, 1, 1]
    assert partial.path.read_bytes() == BODY
    assert sorted(path.suffix for path in partial.leftovers) == [".json", ".part"]
    assert recorder.events[-1].done == len(BODY)
    assert [event.done for event in recorder.events] == sorted(event.done for event in recorder.events)


def test_a_single_wheel_without_numbers(wheels: Path, partial: Partial) -> None:
    wheels.mkdir()
    write_wheel(wheels, "one_model", "0.1.2", "one_model/model.gguf", BODY)
    fetch(WheelSource("one-model", "0.1.2", 1, "one_model/model.gguf"), partial)
    assert partial.path.read_bytes() == BODY


@pytest.mark.parametrize("surplus", [0, 1, 5000])
def test_it_goes_on_at_whole_wheels(wheels: Path, copied: list[str], partial: Partial, surplus: int) -> None:
    source = make_wheels(wheels, BODY, 3)
    partial.path.write_bytes(BODY[:200_000])
    partial.record("hubkit-part{i}==1.0", [100_000, 100_000])
    with partial.append() as out:
        out.write(b"x" * surplus)
    fetch(source, partial)
    assert copied == ["hubkit-part3==1.0"]
    assert partial.path.read_bytes() == BODY


@pytest.mark.usefixtures("copied")
def test_a_left_over_shorter_than_its_journal_starts_again(wheels: Path, partial: Partial) -> None:
    source = make_wheels(wheels, BODY, 3)
    partial.path.write_bytes(BODY[:200_000])
    partial.record("hubkit-part{i}==1.0", [100_000, 100_000])
    partial.truncate(150_000)
    fetch(source, partial)
    assert partial.path.read_bytes() == BODY


def test_a_missing_package_is_named(wheels: Path, partial: Partial) -> None:
    source = make_wheels(wheels, BODY, 3)
    (wheels / "hubkit_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(FileMissing, match=r"no wheel of hubkit-part2==1\.0\.") as caught:
        fetch(source, partial)
    assert (caught.value.file, caught.value.source) == ("model.gguf", "pypi")
    assert partial.size == 100_000


def test_a_missing_version_is_named(wheels: Path, partial: Partial) -> None:
    make_wheels(wheels, BODY, 3)
    source = WheelSource("hubkit-part{i}", "2.0", 3, "x{i}")
    with pytest.raises(FileMissing, match=r"no wheel of hubkit-part1==2\.0\."):
        fetch(source, partial)


@pytest.mark.parametrize("member", ["hubkit_part{i}/data/{i}.bin", "data/{i:02d}.bin", "hubkit_part{i}/"])
@pytest.mark.usefixtures("copied")
def test_the_member_must_have_its_exact_name(wheels: Path, partial: Partial, member: str) -> None:
    make_wheels(wheels, BODY, 3)
    with pytest.raises(FileMissing, match=r"hubkit_part1-1\.0-py3-none-any\.whl has no data file"):
        fetch(WheelSource("hubkit-part{i}", "1.0", 3, member), partial)
    assert partial.size == 0


@pytest.mark.usefixtures("copied")
def test_more_bytes_than_the_file_has(wheels: Path, partial: Partial) -> None:
    source = make_wheels(wheels, BODY + b"x", 3)
    with pytest.raises(DownloadError, match="holds more bytes"):
        fetch(source, partial)
    assert partial.size < len(BODY)


@pytest.mark.usefixtures("copied")
def test_fewer_bytes_than_the_file_has(wheels: Path, partial: Partial) -> None:
    source = make_wheels(wheels, BODY[:-1], 3)
    with pytest.raises(DownloadError, match="hold 299999 bytes"):
        fetch(source, partial)
    assert partial.size == 0


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("block", [1 << 20, 1000])
def test_a_damaged_member(
    wheels: Path, partial: Partial, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Also where the damage lies behind what was already unpacked."""
    monkeypatch.setattr(pypi, "BLOCK", block)
    source = make_wheels(wheels, BODY, 3)
    wheel = wheels / "hubkit_part2-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        info = archive.infolist()[0]
    data = bytearray(wheel.read_bytes())
    middle = info.header_offset + info.compress_size // 2
    data[middle : middle + 4] = bytes(255 - byte for byte in data[middle : middle + 4])
    wheel.write_bytes(data)
    with pytest.raises(DownloadError, match="damaged"):
        fetch(source, partial)
    assert partial.path.read_bytes() == BODY[:100_000]


def test_pips_own_settings_do_not_get_in_the_way(
    wheels: Path, partial: Partial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = make_wheels(wheels, BODY, 1)
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    monkeypatch.setenv("PIP_QUIET", "3")
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__main__.py").write_text("raise SystemExit('another pip')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    fetch(source, partial)
    assert partial.path.read_bytes() == BODY


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "OSError: [WinError 112] Es steht nicht genug Speicherplatz auf dem Datenträger zur Verfügung",
    ],
)
def test_a_full_disk_inside_pip(said: str) -> None:
    fault = pip._fault(said, "a==1", "model.gguf", Path("/there"))
    assert type(fault) is DiskFull
    assert str(fault).startswith("The disk is full: pip could not store a==1. Free some space, or set")


@contextmanager
def package_index(status: int, folder: Path) -> Iterator[str]:
    """An index on 127.0.0.1 that serves `folder`, or answers every request with an error status."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if status == 200:
                super().do_GET()
            else:
                self.send_error(status)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def index_settings(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return wheels


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, AccessDenied, "refuses access"),
        (403, AccessDenied, "refuses access"),
        (404, FileMissing, "has no wheel of hubkit-part1==1.0"),
        (503, SourceUnreachable, "cannot be reached"),
    ],
)
def test_what_an_index_answers(
    index_settings: Path,
    partial: Partial,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    kind: type[DownloadError],
    words: str,
) -> None:
    source = make_wheels(index_settings, BODY, 1)
    with package_index(status, index_settings) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        with pytest.raises(DownloadError) as caught:
            fetch(source, partial)
    assert type(caught.value) is kind, caught.value
    assert words in caught.value.message
    assert caught.value.remedy


def test_no_index_at_all(index_settings: Path, partial: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_wheels(index_settings, BODY, 1)
    with package_index(200, index_settings) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
    with pytest.raises(SourceUnreachable, match="cannot be reached"):
        fetch(source, partial)


def test_progress_of_a_wheel_on_its_way(
    index_settings: Path, partial: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_wheels(index_settings, content(3, 600_000), 1)
    wheel = next(index_settings.glob("*.whl"))
    page = index_settings / "hubkit-part1"
    page.mkdir()
    (page / "index.html").write_text(f'<a href="/{wheel.name}">{wheel.name}</a>', encoding="utf-8")
    heard: list[int] = []
    partial.scratch.mkdir()
    with package_index(200, index_settings) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        pip.download_wheel(source.requirement(1), partial.scratch, "model.gguf", heard.append)
    assert heard[0] == 0
    assert heard[-1] == wheel.stat().st_size


def test_an_error_of_the_callback_leaves_no_pip_behind(
    index_settings: Path, partial: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = []
    real = subprocess.Popen

    def remembered(*args: Any, **options: Any) -> Any:
        processes.append(real(*args, **options))
        return processes[-1]

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", remembered)
    monkeypatch.setattr(pip, "PROGRESS", re.compile(r"\D*(\d)"))
    source = make_wheels(index_settings, BODY, 1)
    monkeypatch.setenv("PIP_FIND_LINKS", str(index_settings))
    partial.scratch.mkdir()
    with pytest.raises(KeyboardInterrupt):
        pip.download_wheel(source.requirement(1), partial.scratch, "model.gguf", stop)
    assert processes[0].returncode is not None


def test_a_model_file_names_its_wheels() -> None:
    source = WheelSource("a-part{i}", "1.0", 2, "a{i}/{i:02d}.bin")
    file = ModelFile("a.gguf", 1, "0" * 64, (source,))
    assert [source.requirement(i) for i in (1, 2)] == ["a-part1==1.0", "a-part2==1.0"]
    assert file.sources == (source,)
    assert source.member_of(2) == "a2/02.bin"
