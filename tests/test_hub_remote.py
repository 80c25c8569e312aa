"""Metadata of models on a hub: the same as of the files, from their first bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest

from localspec.errors import AccessDenied, DownloadError, HashMismatch, ModelFileError, SourceUnreachable
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.hub import hubfile, huggingface, remote
from localspec.hub.finding import resolve
from localspec.hub.remote import read_remote_metadata
from localspec.pairs.pair import ModelFile, WheelSource
from localspec.pairs.reference import required_reference
from tests.hubserver import Hub, running_hub
from tests.tinygguf import write_llama

REPO = "Someone/Some-GGUF"
NAME = "sub/Tiny-Q4_0.gguf"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("tiny") / "Tiny-Q4_0.gguf", seed=5)


@pytest.fixture
def hub(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "store"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    monkeypatch.setattr(huggingface, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(remote, "FIRST_BYTES", 2000)
    huggingface_hub.close_session()
    with running_hub() as server:
        server.repos[REPO] = {NAME: tiny.read_bytes()}
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server
        huggingface_hub.close_session()


def model(choice: str = "Q4_0") -> ModelFile:
    return resolve(required_reference(f"{REPO}:{choice}"))


def facts(metadata: Metadata) -> Metadata:
    return replace(metadata, path=Path("here.gguf"))


def test_they_are_those_of_the_file_without_its_weights(hub: Hub, tiny: Path) -> None:
    found = read_remote_metadata(model())
    assert found.path == Path("Tiny-Q4_0.gguf")
    assert facts(found) == facts(read_metadata(tiny))
    size = tiny.stat().st_size
    assert hub.served < 20_000 < size / 10
    assert hub.ranges_asked[:3] == ["bytes=0-1999", "bytes=2000-3999", "bytes=4000-7999"]


def test_a_server_without_ranges_is_left_early(hub: Hub, tiny: Path) -> None:
    hub.ranges = False
    assert facts(read_remote_metadata(model())) == facts(read_metadata(tiny))


def test_a_split_model_is_known_by_its_first_part(hub: Hub, tmp_path: Path) -> None:
    first = write_llama(tmp_path / "Tiny-Q8_0.gguf", seed=5, per_part=8)
    hub.repos[REPO] = {path.name: path.read_bytes() for path in tmp_path.glob("*-of-*.gguf")}
    assert len(hub.repos[REPO]) == 3
    assert facts(read_remote_metadata(model("Q8_0"))) == facts(read_metadata(first))
    assert hub.served < 20_000


def test_a_file_smaller_than_the_first_range(hub: Hub, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_BYTES", 1 << 30)
    assert facts(read_remote_metadata(model())) == facts(read_metadata(tiny))
    assert hub.ranges_asked == [f"bytes=0-{tiny.stat().st_size - 1}"]


@pytest.mark.parametrize("fault", ["truncate", "stall", "error-503", "rate-limit"])
def test_a_broken_transfer_goes_on(hub: Hub, tiny: Path, fault: str) -> None:
    hub.cdn_faults = [fault, fault]
    assert facts(read_remote_metadata(model())) == facts(read_metadata(tiny))


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("truncate", SourceUnreachable, r"broke the connection in the header of Tiny-Q4_0\.gguf"),
        ("stall", SourceUnreachable, "stopped sending in the header"),
        ("error-503", SourceUnreachable, "answered with server error 503 in the header"),
        ("html", SourceUnreachable, "sent a web page instead of the file"),
        ("forbidden", AccessDenied, "forbids access"),
        ("wrong-range", DownloadError, "sent another range"),
    ],
)
def test_a_fault_that_stays_has_its_sentence(
    hub: Hub, fault: str, kind: type[DownloadError], words: str
) -> None:
    hub.cdn_faults = [fault] * 20
    with pytest.raises(kind, match=words):
        read_remote_metadata(model())
    assert len(hub.cdn_faults) in (19, 20 - hubfile.MAX_FAILURES - 1)


def test_gated_is_said_before_a_byte(hub: Hub) -> None:
    hub.fault = "gated-anonymous"
    with pytest.raises(AccessDenied, match="is gated"):
        read_remote_metadata(model())
    assert hub.served == 0


def test_bytes_that_changed_since_they_were_pinned(hub: Hub) -> None:
    pinned = model()
    hub.etag = "0" * 64
    with pytest.raises(HashMismatch):
        read_remote_metadata(pinned)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<!doctype html>" * 1000, "looks like a web page"),
        (b"GGUF", "cut off in the header"),
        (b"\0" * 100_000, "empty space"),
    ],
)
def test_what_is_no_model_is_refused(hub: Hub, body: bytes, words: str) -> None:
    hub.repos[REPO][NAME] = body
    with pytest.raises(ModelFileError, match=words):
        read_remote_metadata(model())


def test_a_file_that_is_cut_off_on_the_hub(hub: Hub, tiny: Path) -> None:
    hub.repos[REPO][NAME] = tiny.read_bytes()[:-100]
    with pytest.raises(ModelFileError, match="cut off 100 bytes before the end of tensor"):
        read_remote_metadata(model())
    assert hub.served < 20_000


def test_a_header_without_end(hub: Hub, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LONGEST", 5000)
    with pytest.raises(ModelFileError, match="its header has more than 5000 bytes"):
        read_remote_metadata(model())
    assert hub.served <= 5000


def test_a_file_that_no_hub_has() -> None:
    file = ModelFile("x.gguf", 5, "0" * 64, (WheelSource("x", "1", 1, "x"),))
    with pytest.raises(DownloadError, match="none of its sources is a model hub"):
        read_remote_metadata(file)
