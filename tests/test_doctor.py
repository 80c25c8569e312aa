"""`localspec doctor`: every line says what is so, and what to do where something is off."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from click.testing import CliRunner, Result
from packaging.requirements import Requirement

from localspec.cli import main
from localspec.compute.probe import Device, Probe
from localspec.doctor import examine as examining
from localspec.doctor import folders, library, machine, network
from localspec.doctor.environment import check_environment
from localspec.doctor.finding import Finding, Status, note, ok, problem
from localspec.doctor.python import _interpreter, check_python
from localspec.engine.libraries import reference
from localspec.errors import BackendError, FileMissing, SourceUnreachable, StoreError
from localspec.ik.library import IkLlama
from localspec.pairs.catalogue import DEFAULT_PAIR, pair
from localspec.store.store import Store
from localspec.system import ram
from localspec.system.cpu import cpu_features
from tests.fake_library import FakeLibrary
from tests.fake_llama import fake_llama, without
from tests.hubserver import Hub, running_hub

ROOT = Path(__file__).resolve().parents[1]
GOOD = Probe(stage="done", version="0.3.36", features={"AVX": 1}, backends=("CPU",))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("LOCALSPEC_HOME", str(folder))
    return folder


def only(findings: Iterator[Finding], topic: str) -> Finding:
    (found,) = [finding for finding in findings if finding.topic == topic]
    return found


def in_library(monkeypatch: pytest.MonkeyPatch, probe: Probe, topic: str = "llama.cpp") -> Finding:
    monkeypatch.setattr("localspec.llama.library.probe_library", lambda _seconds: probe)
    monkeypatch.setattr(library, "libraries", lambda: [reference()])
    return only(library.check_library(), topic)


# The library


@pytest.mark.parametrize(
    ("probe", "fact", "remedy"),
    [
        (Probe("load", "0.3.36", code=-4), "instruction that this processor does not have", "Compile it"),
        (Probe("load", "0.3.36", code=0xC000001D), "instruction that this processor", "Compile it"),
        (
            Probe("ask", "0.3.36", code=-6, said="x\nGGML_ASSERT(y)\n"),
            'Its last words: "GGML_ASSERT(y)"',
            "Compile",
        ),
        (Probe("load", "0.3.36", code=-11), "crashed while it was loaded (SIGSEGV)", "Compile it"),
        (Probe("load", "0.3.36", code=-9), "memory was full", "Close other programs"),
        (
            Probe("ask", "0.3.36", code=None),
            "did not answer within 60 s when asked for its devices",
            "If a GPU",
        ),
        (Probe("start", "0.3.36", code=1), "ended its process before it was loaded (exit code 1)", "Compile"),
        (Probe("load", "0.3.36", code=0), "(exit code 0)", "Compile it"),
        (Probe("load", "0.3.36", error=("No libc.", "Get it.")), "No libc.", "Get it."),
    ],
)
def test_every_end_of_the_library_has_its_sentence(
    monkeypatch: pytest.MonkeyPatch, probe: Probe, fact: str, remedy: str
) -> None:
    found = in_library(monkeypatch, probe)
    assert found.status is Status.PROBLEM
    assert fact in found.fact
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("version", "status", "fact"),
    [
        ("0.3.36", Status.OK, "of the tested range"),
        ("0.3.35", Status.PROBLEM, "llama-cpp-python 0.3.35 is installed"),
        ("0.4.0", Status.PROBLEM, "llama-cpp-python 0.4.0 is installed"),
        (None, Status.PROBLEM, "not installed"),
    ],
)
def test_the_version_of_the_library(
    monkeypatch: pytest.MonkeyPatch, version: str | None, status: Status, fact: str
) -> None:
    found = in_library(monkeypatch, Probe("load", version, ("A sentence.", "A remedy.")), "llama-cpp-python")
    assert found.status is status
    assert fact in found.fact


@pytest.mark.parametrize(
    ("built", "cpu", "status", "fact"),
    [
        ({"AVX": 1, "REPACK": 1}, {"AVX": True, "AVX512": False}, Status.OK, "what the processor has: AVX"),
        (
            {"AVX512": 1},
            {"AVX512": False},
            Status.PROBLEM,
            "compiled with AVX512, which this processor lacks",
        ),
        ({"AVX": 1}, {"AVX": True, "AVX2": True}, Status.NOTE, "The processor has AVX2"),
        ({"AVX": 1}, None, Status.NOTE, "cannot be read"),
        ({}, {"AVX": False}, Status.OK, "no extensions"),
    ],
)
def test_what_was_compiled_against_what_the_processor_has(
    monkeypatch: pytest.MonkeyPatch,
    built: dict[str, int],
    cpu: dict[str, bool] | None,
    status: Status,
    fact: str,
) -> None:
    monkeypatch.setattr(library, "cpu_features", lambda: cpu)
    found = in_library(monkeypatch, Probe("done", "0.3.36", features=built), "processor")
    assert found.status is status
    assert fact in found.fact


class Second(FakeLibrary):
    """One beside llama.cpp, which a probe found like this."""

    def __init__(self, probe: Probe, offer: str = "") -> None:
        super().__init__()
        self.found, self.offer = probe, offer

    def probe(self, seconds: float) -> Probe:
        return self.found


@pytest.mark.parametrize(
    ("probe", "offer", "topic", "status", "fact", "remedy"),
    [
        (Probe("done", "1.0"), "", "made-up", Status.OK, "made-up 1.0, of the tested range", ""),
        (Probe("done", "1.0"), "", "the made-up library", Status.OK, "loads and answers", ""),
        (
            Probe("done", "1.0", features={"AVX": 1}),
            "",
            "processor, the made-up library",
            Status.OK,
            "uses what the processor has: AVX",
            "",
        ),
        (
            Probe("done", "1.0", features={"SVE": 1}),
            "",
            "processor, the made-up library",
            Status.NOTE,
            "compiled with SVE, which this processor lacks",
            "pip uninstall made-up",
        ),
        (
            Probe("load", None),
            "with it all is well",
            "made-up",
            Status.NOTE,
            "not installed: with it all is well.",
            "pip install 'made-up>=1,<2'",
        ),
        (Probe("load", None), "", "made-up", Status.OK, "is not needed, and no wheel of it exists", ""),
        (
            Probe("load", "2.0", ("It is too new.", "Get 1.")),
            "",
            "made-up",
            Status.NOTE,
            "2.0 is installed; localspec is tested with 1",
            "Install a tested",
        ),
        (
            Probe("load", "1.0", code=-4),
            "",
            "the made-up library",
            Status.NOTE,
            "(SIGILL)",
            "pip uninstall made-up",
        ),
        (
            Probe("load", "1.0", ("No libgomp.", "Get it.")),
            "",
            "the made-up library",
            Status.NOTE,
            "No libgomp.",
            "Get it.",
        ),
    ],
)
def test_a_library_that_can_be_done_without_is_never_a_problem(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    probe: Probe,
    offer: str,
    topic: str,
    status: Status,
    fact: str,
    remedy: str,
) -> None:
    monkeypatch.setattr("localspec.llama.library.probe_library", lambda _seconds: GOOD)
    monkeypatch.setattr(library, "cpu_features", lambda: {"AVX": True, "SVE": False})
    monkeypatch.setattr(library, "libraries", lambda: [reference(), Second(probe, offer)])
    monkeypatch.setattr(library, "why_not_together", lambda *_, **__: "")
    found = list(library.check_library())
    assert all(finding.status is not Status.PROBLEM for finding in found)
    told = only(iter(found), topic)
    assert told.status is status
    assert fact in told.fact
    assert remedy in told.remedy


@pytest.mark.parametrize("reason", ["", "A process that loaded both was ended by SIGSEGV."])
def test_both_libraries_are_tried_together_anew(
    home: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr("localspec.llama.library.probe_library", lambda _seconds: GOOD)
    monkeypatch.setattr(library, "libraries", lambda: [reference(), Second(Probe("done", "1.0"))])
    monkeypatch.setattr(library, "why_not_together", lambda _library, _home, *, redo: reason if redo else "?")
    found = only(library.check_library(), "the made-up library beside llama.cpp")
    assert (found.status, found.fact) == ((Status.NOTE, reason) if reason else (Status.OK, found.fact))
    assert ("pip uninstall made-up" in found.remedy) == bool(reason)


def test_the_true_second_library_is_shown(home: Path) -> None:
    found = {finding.topic: finding for finding in library.check_library()}
    assert found["ik-llama-cpp-python"].data["version"] == "0.1.5"
    for topic in (
        "ik-llama-cpp-python",
        "ik_llama.cpp",
        "processor, ik_llama.cpp",
        "ik_llama.cpp beside llama.cpp",
    ):
        assert found[topic].status is Status.OK, found[topic]
    assert found["processor, ik_llama.cpp"].data["compiled"]


@pytest.mark.parametrize(
    ("system", "machine_", "version", "there"),
    [
        ("linux", "x86_64", (3, 11), True),
        ("linux", "x86_64", (3, 14), False),
        ("linux", "aarch64", (3, 13), True),
        ("linux", "riscv64", (3, 12), False),
        ("darwin", "arm64", (3, 11), True),
        ("darwin", "x86_64", (3, 11), False),
        ("win32", "AMD64", (3, 12), True),
        ("win32", "ARM64", (3, 12), False),
    ],
)
def test_the_second_library_is_offered_where_pip_would_install_it(
    monkeypatch: pytest.MonkeyPatch, system: str, machine_: str, version: tuple[int, int], there: bool
) -> None:
    def not_installed() -> str:
        raise BackendError("It is not installed.", "Install it.")

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine_)
    monkeypatch.setattr(sys, "version_info", version)
    assert IkLlama().offer == ""
    monkeypatch.setattr("localspec.ik.binding.version", not_installed)
    assert bool(IkLlama().offer) is there
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["fast"]
    requirement = Requirement(extra[0])
    assert f"'{requirement.name}{requirement.specifier}'" == IkLlama.requirement
    facts = {"sys_platform": system, "platform_machine": machine_, "python_version": "{}.{}".format(*version)}
    assert requirement.marker is not None
    assert requirement.marker.evaluate({**facts, "platform_python_implementation": "CPython"}) is there


GPU = Device("CUDA0", "Some GPU", (5_000_000_000, 8_000_000_000))


@pytest.mark.parametrize(
    ("backends", "devices", "driver", "status", "fact"),
    [
        (("CPU",), (), False, Status.OK, "no GPU backend is compiled in"),
        (("CPU",), (), True, Status.NOTE, "beside a GPU"),
        (("CUDA", "CPU"), (GPU,), True, Status.OK, "CUDA: CUDA0 (Some GPU, 5.00 GB of 8.00 GB free)"),
        (("CUDA", "CPU"), (), True, Status.NOTE, "no such device is seen"),
        ((), (), False, Status.NOTE, "does not say"),
    ],
)
def test_backends_and_devices(
    monkeypatch: pytest.MonkeyPatch,
    backends: tuple[str, ...],
    devices: tuple[Device, ...],
    driver: bool,
    status: Status,
    fact: str,
) -> None:
    monkeypatch.setattr(library, "_gpu_here", lambda: driver)
    cpu = Device("CPU", "A processor", (1, 2))
    probe = Probe("done", "0.3.36", backends=backends, devices=(*devices, cpu))
    found = in_library(monkeypatch, probe, "devices")
    assert found.status is status
    assert fact in found.fact


def test_flags_of_processors(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu avx avx2 pni\n\n", encoding="utf-8")
    found = cpu_features(info)
    assert found is not None
    assert (found["AVX2"], found["SSE3"], found["AVX512"]) == (True, True, False)
    info.write_text("flags\t\t: avx512f avx512_vnni ssse3\n\n", encoding="utf-8")
    found = cpu_features(info)
    assert found is not None
    names = [name for name, there in found.items() if there]
    assert names == ["SSSE3", "AVX512", "AVX512_VNNI"], "whole words: no AVX in AVX512"
    info.write_text("Features\t: fp asimd asimddp\n", encoding="utf-8")
    found = cpu_features(info)
    assert found is not None
    assert (found["NEON"], found["DOTPROD"], found["SVE"]) == (True, True, False)
    assert cpu_features(tmp_path / "none") is None


# Python


@pytest.mark.parametrize(
    ("version", "wide", "status"),
    [((3, 11, 0), True, Status.OK), ((3, 10, 9), True, Status.PROBLEM), ((3, 12, 0), False, Status.PROBLEM)],
)
def test_the_interpreter(version: tuple[int, ...], wide: bool, status: Status) -> None:
    assert _interpreter(version, wide).status is status


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    found = only(check_python(), "packages")
    assert (found.status, found.data["missing"]) == (Status.PROBLEM, ["llguidance"])


# The machine


def test_memory_is_measured_against_the_default_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "total_memory", lambda: 8 << 30)
    monkeypatch.setattr(machine, "free_memory", lambda: 4 << 30)
    assert only(machine.check_memory(), "memory").status is Status.OK
    monkeypatch.setattr(machine, "free_memory", lambda: 1 << 30)
    found = only(machine.check_memory(), "memory")
    assert (found.status, found.data["free_bytes"]) == (Status.NOTE, 1 << 30)


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    memory = SimpleNamespace(total=64 << 30, available=60 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    limit, used, statistics = tmp_path / "max", tmp_path / "current", tmp_path / "stat"
    monkeypatch.setattr(ram, "_LIMITS", (str(limit),))
    monkeypatch.setattr(ram, "_USED", (str(used),))
    monkeypatch.setattr(ram, "_STATISTICS", (str(statistics),))
    assert (ram.total_memory(), ram.free_memory(), ram.container_limit()) == (64 << 30, 60 << 30, None)
    limit.write_text("max\n")
    assert ram.container_limit() is None
    limit.write_text(f"{8 << 30}\n")
    used.write_text(f"{6 << 30}\n")
    assert (ram.total_memory(), ram.free_memory()) == (8 << 30, 2 << 30)
    statistics.write_text(f"anon 5\ninactive_file {3 << 30}\n")
    assert ram.free_memory() == 5 << 30
    statistics.write_text(f"inactive_file {1 << 30}\ntotal_inactive_file {2 << 30}\n")
    assert ram.free_memory() == 4 << 30, "with the groups below it"
    memory.available = 3 << 30
    assert ram.free_memory() == 3 << 30, "what the machine has is the limit too"
    used.write_text(f"{20 << 30}\n")
    assert ram.free_memory() == 0
    memory.available, memory.total = 60 << 30, 64 << 30
    for unlimited in (100 << 30, (1 << 63) - 4096):  # so large a number is how version 1 says it
        limit.write_text(f"{unlimited}\n")
        used.write_text("0\n")
        assert (ram.total_memory(), ram.free_memory()) == (64 << 30, 60 << 30)
    assert ram.container_limit() is None


@pytest.mark.parametrize(("share", "status"), [(0.1, Status.OK), (0.9, Status.NOTE)])
def test_a_busy_machine_is_noted(monkeypatch: pytest.MonkeyPatch, share: float, status: Status) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 100 * share)
    assert only(machine.check_load(), "load").status is status


# Folders


def test_a_store_that_is_not_there_yet_is_fine_and_is_not_made(home: Path) -> None:
    found = only(folders.check_store(), "store")
    assert (found.status, "can be made" in found.fact) == (Status.OK, True)
    assert not home.exists()


def test_a_store_says_what_it_holds(home: Path) -> None:
    store = Store()
    store.prepare()
    (home / "partial" / "x.part").write_bytes(b"12345")
    first, second = folders.check_store()
    assert first.status is Status.OK
    assert "format 1, 0 pairs" in first.fact
    assert (second.status, "5 bytes" in second.fact) == (Status.NOTE, True)
    assert sorted(file.name for file in home.iterdir()) == ["files", "format", "locks", "partial"]


def test_a_file_in_the_way_of_the_store(home: Path) -> None:
    home.write_bytes(b"")
    found = only(folders.check_store(), "store")
    assert (found.status, str(home) in found.fact) == (Status.PROBLEM, True)
    assert found.remedy


def test_a_folder_that_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store().prepare()

    true = folders.tempfile.TemporaryFile

    def refuse(**where: Path) -> object:
        if where["dir"] == home / "partial":
            raise PermissionError(13, "Permission denied")
        return true(**where)

    monkeypatch.setattr(folders.tempfile, "TemporaryFile", refuse)
    found = only(folders.check_store(), "store")
    assert found.status is Status.PROBLEM
    assert found.fact == f"{home / 'partial'} cannot be read and written: Permission denied."


def test_a_store_of_a_newer_localspec(home: Path) -> None:
    home.mkdir()
    (home / "format").write_text("99\n")
    found = only(folders.check_store(), "store")
    assert (found.status, "format '99'" in found.fact) == (Status.PROBLEM, True)


@pytest.mark.parametrize(
    ("free", "status"), [(1 << 40, Status.OK), (1 << 20, Status.PROBLEM), (1_200_000_000, Status.PROBLEM)]
)
def test_the_disk_must_hold_the_default_pair(
    home: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: Status
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
    assert only(folders.check_disk(), "disk").status is status


def test_what_is_here_of_the_pair_needs_no_room(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = pair(DEFAULT_PAIR).files
    assert folders._missing(home) == target.bytes + draft.bytes
    store = Store(home)
    store.prepare()
    path = store.place_of(target)
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(target.bytes)
    assert folders._missing(home) == draft.bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=draft.bytes - 1))
    assert only(folders.check_disk(), "disk").status is Status.PROBLEM
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=draft.bytes))
    assert only(folders.check_disk(), "disk").status is not Status.PROBLEM


def test_a_nearly_full_disk_with_the_pair_on_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1 << 20))
    monkeypatch.setattr(folders, "_missing", lambda _folder: 0)
    assert only(folders.check_disk(), "disk").status is Status.NOTE


def test_the_cache_of_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    assert "not there" in only(folders.check_cache(), "Hugging Face cache").fact
    snapshot = cache / "models--a--b" / "snapshots" / "0123" / "deep"
    snapshot.mkdir(parents=True)
    (snapshot / "x.gguf").write_bytes(b"GGUF")
    (snapshot / "gone.gguf").symlink_to(tmp_path / "nowhere")
    first, second = folders.check_cache()
    assert (first.data["files"], first.data["bytes"], first.status) == (1, 4, Status.OK)
    assert (second.status, "gone.gguf" in second.fact) == (Status.NOTE, True)


# The network


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as hub:
        draft = pair(DEFAULT_PAIR).files[-1]
        hub.files[draft.file] = b"stand-in"
        hub.etag, hub.size = draft.sha256, draft.bytes
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere/token")
        version = draft.sources[-1].version
        monkeypatch.setattr(network, "index_versions", lambda _package: [version, "0.1"])
        yield hub


def in_network(topic: str) -> Finding:
    return only(network.check_network(offline=False), topic)


def test_the_hub_is_asked_once(hub: Hub) -> None:
    found = in_network(network.HUB)
    assert (found.status, hub.endpoint in found.fact, "no token" in found.fact) == (Status.OK, True, True)
    assert hub.probes == 1
    assert in_network(network.INDEX).status is Status.OK


def test_a_token_that_is_accepted(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    found = in_network(network.HUB)
    assert (found.status, found.data["token_accepted"]) == (Status.OK, True)
    assert hub.tokens == ["Bearer hf_secret"]
    assert "hf_secret" not in json.dumps(found.to_dict())


def test_a_token_that_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.fault = "bad-token"
    found = in_network(network.HUB)
    assert (found.status, "refuses the token" in found.fact) == (Status.PROBLEM, True)
    assert "hf auth login" in found.remedy


@pytest.mark.parametrize("fault", ["error-503", "html", "rate-limit", "no-repo"])
def test_a_hub_that_is_of_no_use_is_a_note_beside_an_index(hub: Hub, fault: str) -> None:
    hub.fault = fault
    found = in_network(network.HUB)
    assert (found.status, found.data["reachable"]) == (Status.NOTE, False)
    assert found.remedy


def test_neither_source_is_a_problem(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.fault = "error-500"

    def unreachable(_package: str) -> list[str]:
        raise SourceUnreachable("The package index cannot be reached.", "Check it.")

    monkeypatch.setattr(network, "index_versions", unreachable)
    statuses = [found.status for found in network.check_network(offline=False)]
    assert statuses == [Status.PROBLEM, Status.PROBLEM]


def test_an_index_without_the_pair(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "index_versions", lambda _package: ["9.9"])
    assert in_network(network.INDEX).status is Status.NOTE

    def missing(_package: str) -> list[str]:
        raise FileMissing("The package index has no x.", "Check it.")

    monkeypatch.setattr(network, "index_versions", missing)
    assert in_network(network.INDEX).fact == "The package index has no x."


def test_offline_nothing_is_asked(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "index_versions", lambda _package: pytest.fail("asked"))
    found = list(network.check_network(offline=True))
    assert [(item.status, item.data["asked"]) for item in found] == [(Status.OK, False)] * 2
    assert hub.probes == 0


# Variables


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is set that the doctor looks at."""
    starts = ("LOCALSPEC_", "HF_", "PIP_", "SSL_CERT_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    for name in list(os.environ):
        if name.startswith(starts) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("bare")
def test_variables_are_listed_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(check_environment(), "variables").fact == "none is set that changes what localspec does"
    monkeypatch.setenv("LOCALSPEC_HOME", "/somewhere")
    monkeypatch.setenv("LOCALSPEC_HOEM", "/elsewhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:password@mirror.example/hf")
    misspelt, offline, listed = check_environment()
    assert "LOCALSPEC_HOEM" in misspelt.fact
    assert misspelt.remedy == "Did you mean LOCALSPEC_HOME?"
    assert "HF_HUB_OFFLINE" in offline.fact
    assert listed.data == {"LOCALSPEC_HOME": "/somewhere", "HF_ENDPOINT": "https://mirror.example/hf"}


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("value", ["http://me:password@proxy:8080", "me:password@proxy:8080"])
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "all_proxy"])
def test_proxies_are_listed_without_secrets(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    listed = only(check_environment(), "variables")
    spelt = name.upper() if os.name == "nt" else name
    assert listed.data == {spelt: value.replace("me:password@", "")}


@pytest.mark.usefixtures("bare")
def test_certificates_that_are_not_there_or_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "a.pem"))
    ignored, _ = check_environment()
    assert ignored.status is Status.NOTE
    assert ignored.fact.startswith("REQUESTS_CA_BUNDLE is read by pip alone")
    assert "SSL_CERT_FILE" in ignored.remedy
    for content in (None, "no certificate"):
        named = tmp_path / "b.pem"
        if content is not None:
            named.write_text(content, encoding="utf-8")
        monkeypatch.setenv("SSL_CERT_FILE", str(named))
        fault, _ = check_environment()
        assert fault.status is Status.PROBLEM
        assert str(named) in fault.fact


# The whole


def findings(*found: Finding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "examine", lambda offline, rpc: iter(found))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def test_the_report_and_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    findings(ok("A", "fine"), note("B", "so so", "Do this."), monkeypatch=monkeypatch)
    done = run()
    assert (done.exit_code, done.stdout) == (
        0,
        "ok       A: fine\nnote     B: so so\n         -> Do this.\nNo problems.\n",
    )
    findings(problem("C", "Broken.", "Mend it."), monkeypatch=monkeypatch)
    done = run()
    assert (done.exit_code, done.stdout) == (1, "problem  C: Broken.\n         -> Mend it.\n1 problem.\n")


def test_the_report_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    findings(ok("A", "fine", answer=42), problem("C", "Broken.", "Mend it."), monkeypatch=monkeypatch)
    done = run("--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "problems": 1,
        "findings": [
            {"topic": "A", "status": "ok", "fact": "fine", "remedy": "", "data": {"answer": 42}},
            {"topic": "C", "status": "problem", "fact": "Broken.", "remedy": "Mend it."},
        ],
    }


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> Iterator[Finding]:
        yield ok("load", "fine")
        raise ZeroDivisionError("one\ntwo")

    def fail() -> Iterator[Finding]:
        raise StoreError("No store.", "Get one.")
        yield ok("x", "y")

    monkeypatch.setattr(examining, "check_load", crash)
    monkeypatch.setattr(examining, "check_cache", fail)
    monkeypatch.setattr(examining, "check_library", lambda home: iter(()))
    found = {finding.fact: finding for finding in examining.examine(offline=True)}
    assert "fine" in found
    assert found["This could not be checked: ZeroDivisionError: one two."].status is Status.PROBLEM
    assert found["No store."].remedy == "Get one."


def doctor_in_a_child(path: Path, home: Path) -> tuple[int, dict[str, dict[str, object]]]:
    """Exit code and findings by topic, of a doctor whose imports look into `path` first."""
    done = subprocess.run(
        [sys.executable, "-m", "localspec", "doctor", "--offline", "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}", "LOCALSPEC_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    report = json.loads(done.stdout)
    return done.returncode, {found["topic"]: found for found in report["findings"]}


def test_it_works_without_llama_cpp_and_numpy(tmp_path: Path, home: Path) -> None:
    without(tmp_path, "llama_cpp", "numpy")
    code, found = doctor_in_a_child(tmp_path, home)
    assert code == 1
    assert found["llama-cpp-python"]["status"] == "problem"
    assert "pip install" in str(found["llama-cpp-python"]["remedy"])
    assert {"store", "memory", "disk", "variables", "package index"} <= set(found)
    assert {item["status"] for topic, item in found.items() if not topic.startswith("llama")} <= {
        "ok",
        "note",
    }


def test_an_illegal_instruction_is_explained_and_not_died_of(tmp_path: Path, home: Path) -> None:
    fake_llama(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGILL)")
    code, found = doctor_in_a_child(tmp_path, home)
    assert code == 1
    assert "SIGILL" in str(found["llama.cpp"]["fact"])
    assert "--no-binary llama-cpp-python" in str(found["llama.cpp"]["remedy"])
    assert found["llama-cpp-python"]["status"] == "ok"
