"""Bytes from a server that stops, dawdles, breaks off, ignores ranges, compresses, redirects or lies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from localspec.errors import DownloadError, HashMismatch, SourceUnreachable
from localspec.hub import hubfile, huggingface, pace
from localspec.hub.fetching import pull
from localspec.hub.huggingface import HubFetcher
from localspec.hub.pace import Pace
from localspec.hub.time_limit import within
from localspec.store.store import Store
from localspec.system.partial import Partial
from localspec.system.progress import Reporter
from tests.hubkit import HUB, content, hub_of, make_pair, model_file, sandbox
from tests.hubserver import Hub

BODY = content(1, 600_000)
FILE = model_file("model.gguf", BODY)
LONG = 30.0  # seconds of a time limit that must not be the one that strikes


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    sandbox(monkeypatch, tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", LONG)
    with hub_of({"model.gguf": BODY}, monkeypatch) as server:
        yield server


@pytest.fixture
def partial(tmp_path: Path) -> Partial:
    return Partial(tmp_path / f"{FILE.sha256}.part", FILE.bytes)


def fetch(partial: Partial) -> bool:
    return HubFetcher().fetch(FILE, HUB, partial, Reporter(FILE.file, FILE.bytes, None))


def test_a_window_with_too_few_bytes_is_seen_and_the_next_one_begins_anew() -> None:
    now = [0.0]
    watched = Pace(clock=lambda: now[0])
    least = int(pace.WINDOW_SECONDS * pace.LEAST_BYTES_PER_SECOND)
    heard = []
    for seconds, count in [
        (29.0, 0),
        (1.0, least),
        (30.0, least),
        (30.0, least - 1),
        (29.0, 1),
        (1.0, least),
    ]:
        now[0] += seconds
        heard.append(watched.is_lost(count))
    assert heard == [False, False, False, True, False, False]


def test_a_server_that_sends_a_byte_now_and_then_is_asked_again(
    hub: Hub, partial: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "WINDOW_SECONDS", 0.2)
    hub.cdn_faults = ["trickle"] * 2
    assert fetch(partial) is False
    assert partial.path.read_bytes() == BODY
    assert hub.cdn_faults == []
    assert [asked is None for asked in hub.ranges_asked] == [True, False, False]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("trickle", "sends next to nothing at"),
        ("truncate", "at 5 kB of 600 kB of model.gguf"),
        ("reset", "broke the connection at"),
    ],
)
def test_a_few_bytes_more_each_time_are_no_progress(
    hub: Hub, partial: Partial, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    monkeypatch.setattr(pace, "WINDOW_SECONDS", 0.2)
    hub.cut = 1200
    hub.cdn_faults = [fault] * 20
    with pytest.raises(SourceUnreachable) as caught:
        fetch(partial)
    assert words in caught.value.message
    assert "what was fetched is kept" in caught.value.remedy
    assert len(hub.cdn_faults) == 20 - hubfile.MAX_FAILURES - 1
    assert 0 < partial.size < len(BODY)
    assert BODY.startswith(partial.path.read_bytes())


def test_new_ground_lets_the_count_of_failures_start_again(
    hub: Hub, partial: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "GROUND", 50_000)
    hub.cut = 50_000
    hub.cdn_faults = ["truncate"] * 11
    fetch(partial)
    assert partial.path.read_bytes() == BODY
    assert hub.served == len(BODY)


def test_headers_that_come_byte_by_byte(hub: Hub, partial: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.cdn_faults = ["trickle-headers"] * 20
    with pytest.raises(SourceUnreachable, match="does not answer in time at 0 bytes of 600 kB"):
        fetch(partial)


def test_a_reset_goes_on_where_it_broke(hub: Hub, partial: Partial) -> None:
    hub.cut = 100_000
    hub.cdn_faults = ["reset"]
    fetch(partial)
    assert partial.path.read_bytes() == BODY
    assert len(hub.ranges_asked) == 2


@pytest.mark.parametrize("start", [0, 1000])
@pytest.mark.parametrize("fault", ["gzip", "unsized"])
def test_a_compressed_file_or_one_without_a_length_comes_whole(
    hub: Hub, partial: Partial, fault: str, start: int
) -> None:
    partial.path.write_bytes(BODY[:start])
    hub.cdn_faults = [fault]
    fetch(partial)
    assert partial.path.read_bytes() == BODY


@pytest.mark.parametrize("fault", ["gzip", "unsatisfied"])
def test_after_a_useless_part_the_whole_is_asked_for(hub: Hub, partial: Partial, fault: str) -> None:
    partial.path.write_bytes(BODY[:1000])
    hub.cdn_faults = [fault]
    fetch(partial)
    assert hub.ranges_asked == ["bytes=1000-", None]
    assert partial.path.read_bytes() == BODY


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("wrong-range", DownloadError, "sent another range of model.gguf than was asked for"),
        ("no-range", DownloadError, "sent another range of model.gguf than was asked for"),
        ("wrong-total", DownloadError, "has 600001 bytes under the name model.gguf, which has 600000"),
        ("short", DownloadError, "has 7 bytes under the name model.gguf, which has 600000"),
        ("html", SourceUnreachable, "sent a web page instead of the file (a login page or a proxy?)"),
        ("xhtml", SourceUnreachable, "sent a web page instead of the file (a login page or a proxy?)"),
    ],
)
def test_an_answer_that_is_not_the_file_is_refused_and_nothing_lost(
    hub: Hub, partial: Partial, fault: str, kind: type[DownloadError], words: str
) -> None:
    partial.path.write_bytes(BODY[:1000])
    hub.cdn_faults = [fault]
    with pytest.raises(DownloadError) as caught:
        fetch(partial)
    assert type(caught.value) is kind
    assert words in caught.value.message
    assert partial.path.read_bytes() == BODY[:1000]


def test_a_renamed_repository_is_followed_with_the_token(
    hub: Hub, partial: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.fault = "moved"
    fetch(partial)
    assert partial.path.read_bytes() == BODY
    assert set(hub.tokens) == {"Bearer hf_secret"}
    assert hub.cdn_tokens == [None]


def test_redirects_in_a_circle_in_the_middle(hub: Hub, partial: Partial) -> None:
    hub.cut = 1000
    hub.cdn_faults = ["truncate"]
    hub.on_probe = lambda: setattr(hub, "fault", "circle" if hub.ranges_asked else None)
    with pytest.raises(SourceUnreachable, match="redirects in a circle at 1 kB of 600 kB"):
        fetch(partial)
    assert partial.path.read_bytes() == BODY[:1000]


def test_another_file_in_the_middle_is_seen_before_a_byte_of_it_is_kept(hub: Hub, partial: Partial) -> None:
    hub.cut = 1000
    hub.cdn_faults = ["truncate"]
    hub.on_probe = lambda: setattr(hub, "etag", "0" * 64 if hub.ranges_asked else None)
    with pytest.raises(HashMismatch, match=r"has another model\.gguf, with sha256 000000000000"):
        fetch(partial)
    assert partial.path.read_bytes() == BODY[:1000]


def test_a_file_put_together_from_two_revisions_costs_one_more_try(hub: Hub, tmp_path: Path) -> None:
    hub.cut = 1000
    hub.cdn_faults = ["truncate"]
    hub.etag = FILE.sha256
    hub.files["model.gguf"] = content(9, len(BODY))
    hub.on_probe = lambda: hub.files.update({"model.gguf": BODY}) if hub.ranges_asked else None
    target, _ = pull(make_pair(FILE), store=Store(tmp_path / "home"))
    assert target.read_bytes() == BODY
    assert hub.ranges_asked == [None, "bytes=1000-", None]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("proxy", ["html", "error-503"])
def test_a_proxy_that_answers_for_the_hub(
    hub: Hub, partial: Partial, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.delenv("NO_PROXY")
    huggingface_hub.close_session()
    hub.fault = proxy
    with pytest.raises(
        SourceUnreachable, match=r"http://hub\.invalid (does not answer as a|answered with server)"
    ):
        fetch(partial)
    assert hub.probes == 1


def test_a_proxy_that_is_not_there(hub: Hub, partial: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.delenv("NO_PROXY")
    huggingface_hub.close_session()
    with pytest.raises(SourceUnreachable, match="cannot be reached") as caught:
        fetch(partial)
    assert "through the proxy http://127.0.0.1:9 of HTTP_PROXY" in caught.value.message
    assert "HTTP_PROXY" in caught.value.remedy


def test_a_result_that_comes_too_late_is_handed_over() -> None:
    import threading

    go, late = threading.Event(), threading.Event()

    def call() -> str:
        go.wait(LONG)
        return "late"

    with pytest.raises(TimeoutError):
        within(0.01, call, late=lambda result: late.set() if result == "late" else None)
    go.set()
    assert late.wait(LONG)


def test_no_symbolic_link_is_made(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("A required privilege is not held by the client")

    monkeypatch.setattr(os, "symlink", refuse)
    target, _ = pull(make_pair(FILE), store=Store(tmp_path / "home"))
    assert target.read_bytes() == BODY
    assert not target.is_symlink()
