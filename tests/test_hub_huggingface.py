"""The Hugging Face source against a hub-like server: every misbehaviour has its own sentence, and resumes."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from localspec.errors import AccessDenied, DownloadError, FileMissing, HashMismatch, SourceUnreachable
from localspec.hub import endpoint, hubfile
from localspec.hub.huggingface import HubFetcher
from localspec.pairs.catalogue import ModelFile
from localspec.system.partial import Partial
from localspec.system.progress import Reporter
from tests.hubkit import HUB, Recorder, content, hub_of, make_pair, model_file, run_cli, sandbox
from tests.hubserver import Hub

BODY = content(1, 300_000)
FILE = model_file("model.gguf", BODY)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    sandbox(monkeypatch, tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    with hub_of({"model.gguf": BODY}, monkeypatch) as server:
        yield server


@pytest.fixture
def partial(tmp_path: Path) -> Partial:
    return Partial(tmp_path / f"{FILE.sha256}.part", FILE.bytes)


def fetch(partial: Partial, file: ModelFile = FILE, recorder: Recorder | None = None) -> None:
    HubFetcher().fetch(file, HUB, partial, Reporter(file.file, file.bytes, recorder))


def test_a_file_comes_whole(hub: Hub, partial: Partial) -> None:
    recorder = Recorder()
    fetch(partial, recorder=recorder)
    assert partial.path.read_bytes() == BODY
    assert hub.served == len(BODY)
    assert recorder.events[-1].done == recorder.events[-1].total == len(BODY)


@pytest.mark.usefixtures("hub")
def test_the_terminal_stays_quiet(
    partial: Partial, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    fetch(partial)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert logger.level == before


@pytest.mark.parametrize("length", [1, 16_383, 150_000, 299_999])
def test_a_left_over_of_any_length_is_continued(hub: Hub, partial: Partial, length: int) -> None:
    partial.path.write_bytes(BODY[:length])
    fetch(partial)
    assert partial.path.read_bytes() == BODY
    assert hub.ranges_asked == [f"bytes={length}-"]
    assert hub.served == len(BODY) - length


def test_a_complete_left_over_needs_no_bytes(hub: Hub, partial: Partial) -> None:
    partial.path.write_bytes(BODY)
    fetch(partial)
    assert hub.served == 0


def test_a_left_over_longer_than_the_file_is_dropped(partial: Partial) -> None:
    partial.path.write_bytes(BODY + b"x")
    partial.repair()
    assert partial.size == 0


def test_a_server_without_ranges_sends_all_again(hub: Hub, partial: Partial) -> None:
    hub.ranges = False
    partial.path.write_bytes(b"x" * 1000)
    fetch(partial)
    assert partial.path.read_bytes() == BODY


@pytest.mark.parametrize("fault", ["truncate", "stall", "error-503", "rate-limit"])
def test_a_broken_transfer_goes_on_where_it_broke(hub: Hub, partial: Partial, fault: str) -> None:
    hub.cut = 100_000
    hub.cdn_faults = [fault, fault]
    fetch(partial)
    assert partial.path.read_bytes() == BODY
    assert hub.served == len(BODY)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("truncate", "broke the connection at 1 kB of 300 kB"),
        ("stall", "stopped sending at 1 kB of 300 kB"),
        ("error-503", "answered with server error 503 at 0 bytes of 300 kB"),
    ],
)
def test_a_transfer_that_never_gets_further_ends(hub: Hub, partial: Partial, fault: str, words: str) -> None:
    hub.ranges = False
    hub.cdn_faults = [fault] * 20
    with pytest.raises(SourceUnreachable) as caught:
        fetch(partial)
    assert words in caught.value.message
    assert hub.cdn_faults == [fault] * (20 - hubfile.MAX_FAILURES - 1)


@pytest.mark.parametrize(
    ("fault", "token", "kind", "words"),
    [
        ("bad-token", "hf_old", AccessDenied, "refuses the token: it is wrong or has expired"),
        ("expired-token", "hf_old", AccessDenied, "refuses the token: it is wrong or has expired"),
        ("gated", "hf_good", AccessDenied, "is gated: its licence must be accepted"),
        ("gated-anonymous", None, AccessDenied, "is gated: its licence must be accepted"),
        ("forbidden", None, AccessDenied, "forbids access to someone/some-GGUF"),
        ("no-repo", None, FileMissing, "has no public repository someone/some-GGUF"),
        ("private", None, FileMissing, "has no public repository someone/some-GGUF"),
        ("no-revision", None, FileMissing, f"has no revision {HUB.revision}"),
        ("no-file", None, FileMissing, "has no file model.gguf at its pinned revision"),
        ("rate-limit", None, SourceUnreachable, "turns requests away"),
        ("error-500", None, SourceUnreachable, "answered with server error 500"),
        ("error-503", None, SourceUnreachable, "answered with server error 503"),
        ("html", None, SourceUnreachable, "does not answer as a model hub does"),
        ("reset", None, SourceUnreachable, "cannot be reached"),
        ("circle", None, SourceUnreachable, "cannot be reached (TooManyRedirects"),
    ],
)
def test_each_refusal_has_its_sentence(
    hub: Hub,
    partial: Partial,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    token: str | None,
    kind: type[DownloadError],
    words: str,
) -> None:
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.fault = fault
    with pytest.raises(DownloadError) as caught:
        fetch(partial)
    assert type(caught.value) is kind
    assert words in caught.value.message
    assert caught.value.remedy
    assert (caught.value.file, caught.value.source) == ("model.gguf", "huggingface")
    assert partial.size == 0


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("html", SourceUnreachable, "sent a web page instead of the file"),
        ("forbidden", AccessDenied, "forbids access"),
        ("no-file", FileMissing, "has no file model.gguf"),
        ("wrong-range", DownloadError, "sent another range of model.gguf"),
    ],
)
def test_the_bytes_are_refused(
    hub: Hub, partial: Partial, fault: str, kind: type[DownloadError], words: str
) -> None:
    hub.cdn_faults = [fault]
    partial.path.write_bytes(BODY[:10])
    with pytest.raises(kind) as caught:
        fetch(partial)
    assert words in caught.value.message
    assert partial.path.read_bytes() == BODY[:10]


def test_the_token_goes_to_the_hub_and_not_to_the_cdn(
    hub: Hub, partial: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch(partial)
    assert set(hub.tokens) == {"Bearer hf_secret"}
    assert hub.cdn_tokens == [None]


def test_another_sha256_is_seen_before_the_first_byte(hub: Hub, partial: Partial) -> None:
    hub.etag = "0" * 64
    with pytest.raises(HashMismatch, match="sha256 000000000000") as caught:
        fetch(partial)
    assert caught.value.expected == FILE.sha256
    assert hub.served == 0


def test_another_size_is_seen_before_the_first_byte(hub: Hub, partial: Partial) -> None:
    hub.size = 7
    with pytest.raises(DownloadError, match=r"has 7 bytes under the name model\.gguf, which has 300000"):
        fetch(partial)
    assert hub.served == 0


@pytest.mark.parametrize("start", [0, 100])
def test_a_content_length_that_is_not_the_files(hub: Hub, partial: Partial, start: int) -> None:
    hub.files["model.gguf"] = BODY + b"more"
    hub.size = len(BODY)
    partial.path.write_bytes(BODY[:start])
    wanted = ModelFile("model.gguf", len(BODY), model_file("x.gguf", BODY + b"more").sha256, (HUB,))
    with pytest.raises(DownloadError, match="has 300004 bytes"):
        fetch(partial, wanted)


def test_an_unreachable_endpoint_is_asked_once(
    hub: Hub, partial: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "PROBE_SECONDS", 0.2)
    hub.fault = "hang"
    fetcher = HubFetcher()
    for _ in range(3):
        with pytest.raises(SourceUnreachable, match="does not answer in time"):
            fetcher.fetch(FILE, HUB, partial, Reporter(FILE.file, FILE.bytes, None))
    assert hub.probes == 1


@pytest.mark.usefixtures("hub")
def test_a_name_lookup_that_hangs_does_not_hold_the_pull(
    partial: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def hanging_lookup(*_: object, **__: object) -> object:
        released.wait(30)
        raise socket.gaierror("released")

    monkeypatch.setattr(endpoint, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", hanging_lookup)
    with pytest.raises(SourceUnreachable, match="does not answer in time"):
        fetch(partial)
    released.set()


@pytest.mark.usefixtures("hub")
def test_no_server_at_all(partial: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}/")
    with pytest.raises(SourceUnreachable, match="cannot be reached") as caught:
        fetch(partial)
    assert "HF_ENDPOINT" in caught.value.remedy


@pytest.mark.parametrize("endpoint", ["nonsense", "http://[", "ftp://127.0.0.1"])
@pytest.mark.usefixtures("hub")
def test_an_endpoint_that_is_no_address(
    partial: Partial, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(SourceUnreachable, match="cannot be reached"):
        fetch(partial)


def test_offline_mode_of_the_hub_library(hub: Hub, partial: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SourceUnreachable, match="HF_HUB_OFFLINE is set"):
        fetch(partial)
    assert hub.probes == 0


@pytest.mark.usefixtures("hub")
def test_an_error_of_the_callback_passes_and_keeps_the_bytes(partial: Partial) -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        HubFetcher().fetch(FILE, HUB, partial, Reporter(FILE.file, FILE.bytes, stop))
    assert BODY.startswith(partial.path.read_bytes())
    assert partial.size > 0


@pytest.mark.parametrize("token", [None, "hf_old"])
def test_the_command_has_four_sentences_for_gated_token_missing_and_down(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    said = []
    for fault in ("gated", "bad-token", "no-repo", "error-503"):
        hub.fault = fault
        child = run_cli(make_pair(FILE), tmp_path / "home", "pull", "small", "-q")
        output, errors = child.communicate()
        assert (child.returncode, output) == (1, "")
        assert errors.startswith("error: The pair small is not complete: model.gguf missing. ")
        assert "Traceback" not in errors
        said.append(errors)
    # Without a token, a hub's 401 means that there is nothing one may see.
    assert len(set(said)) == (4 if token else 3)
    assert hub.probes == 4
