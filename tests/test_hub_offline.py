"""Offline, and with a pair that is complete: not a single socket, not a single process."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import huggingface_hub.constants
import pytest

from localspec.errors import OfflineError
from localspec.hub.fetching import pull
from localspec.store.store import Store
from tests.hubkit import HUB, content, make_pair, make_wheels, model_file, run_cli, sandbox

BODY = content(1, 500_000)
FILE = model_file("model.gguf", BODY)
PAIR = make_pair(FILE)

NO_SOCKETS = """
import sys

def watch(event, arguments):
    if event.startswith("socket.") and event != "socket.gethostname" or event == "subprocess.Popen":
        print("forbidden:", event, arguments, flush=True)
        import os
        os._exit(99)

sys.addaudithook(watch)
"""


@pytest.fixture(autouse=True)
def _sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox(monkeypatch, tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(socket.socket):
        def __init__(self, *_: object, **__: object) -> None:
            raise AssertionError("a socket was made")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a name was looked up, or a process started")

    monkeypatch.setattr(socket, "socket", Refused)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "home")
    store.prepare()
    return store


def lay_final(store: Store) -> None:
    path = store.home / "files" / FILE.sha256 / FILE.file
    path.parent.mkdir(parents=True)
    path.write_bytes(BODY)


def lay_partial(store: Store) -> None:
    store.partial(FILE).path.write_bytes(BODY)


def lay_in_cache(_: Store) -> None:
    repo = Path(huggingface_hub.constants.HF_HUB_CACHE) / "models--someone--some-GGUF"
    snapshot = repo / "snapshots" / HUB.revision
    snapshot.mkdir(parents=True)
    (snapshot / "model.gguf").write_bytes(BODY)


PLACES = {"store": lay_final, "left-over": lay_partial, "cache": lay_in_cache}


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.usefixtures("no_sockets")
def test_what_is_on_the_disk_needs_no_socket(store: Store, place: str, offline: bool) -> None:
    PLACES[place](store)
    assert pull(PAIR, store=store, offline=offline)[0].read_bytes() == BODY


@pytest.mark.usefixtures("no_sockets")
def test_what_is_not_there_is_an_error_without_a_socket(store: Store, tmp_path: Path) -> None:
    file = model_file("model.gguf", BODY, HUB, make_wheels(tmp_path / "wheels", BODY, 1))
    store.partial(file).path.write_bytes(BODY[:1000])
    with pytest.raises(OfflineError, match=r"model\.gguf is not on this disk, and offline forbids"):
        pull(make_pair(file), store=store, offline=True)
    assert store.partial(file).path.read_bytes() == BODY[:1000]


@pytest.mark.usefixtures("no_sockets")
def test_the_guard_itself_sees_a_download(store: Store) -> None:
    with pytest.raises(Exception, match=r"a socket was made|a name was looked up"):
        pull(PAIR, store=store)


@pytest.mark.parametrize("place", PLACES)
def test_the_command_makes_no_socket_either(store: Store, place: str) -> None:
    PLACES[place](store)
    child = run_cli(PAIR, store.home, "pull", PAIR.name, "--offline", before=NO_SOCKETS)
    output, errors = child.communicate()
    assert (child.returncode, output) == (0, f"{PAIR.name} is ready: localspec chat {PAIR.name}\n"), errors


def test_the_command_offline_with_nothing_there(store: Store) -> None:
    child = run_cli(PAIR, store.home, "pull", PAIR.name, "--offline", before=NO_SOCKETS)
    output, errors = child.communicate()
    assert (child.returncode, output) == (1, "")
    assert "model.gguf is not on this disk, and offline forbids the network." in errors


def test_the_guard_of_the_command_sees_a_download(store: Store) -> None:
    child = run_cli(PAIR, store.home, "pull", PAIR.name, before=NO_SOCKETS)
    output, _ = child.communicate()
    assert child.returncode == 99
    assert output.startswith("forbidden: socket.")


def test_help_and_list_make_no_socket(store: Store) -> None:
    for arguments in (("--help",), ("pull", "--help"), ("list",)):
        child = run_cli(PAIR, store.home, *arguments, before=NO_SOCKETS)
        child.communicate()
        assert child.returncode == 0
