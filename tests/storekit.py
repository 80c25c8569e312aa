"""A store of its own and a tiny pair that loads, known by an organisation's folder of pair files."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from localspec.cli import main
from localspec.pairs.pair import HubSource, ModelFile, Pair
from localspec.pairs.pairtext import pair_text
from localspec.store.prepared import PreparedDrafts, Source, Trial
from localspec.store.store import Store
from tests.hubkit import HUB, ROOT
from tests.tinygguf import write_llama

TRIAL = Trial({"threads": 2}, {"original": 0.015, "q4_0": 0.009}, "q4_0")


@dataclass(frozen=True)
class Shelf:
    """store: its home does not exist yet. elsewhere: a folder with the pair's files. pair: known, not in the store."""

    store: Store
    elsewhere: Path
    org: Path
    pair: Pair

    @property
    def home(self) -> Path:
        return self.store.home

    @property
    def originals(self) -> list[Path]:
        return [self.elsewhere / file.file for file in self.pair.files]

    def fill(self, *, draft: bool = True) -> list[Path]:
        """Lays the files into the store as a finished download does."""
        self.store.prepare()
        places = []
        for file, original in zip(self.pair.files, self.originals, strict=True):
            if file is self.pair.target or draft:
                place = self.store.place_of(file)
                place.parent.mkdir(parents=True)
                shutil.copyfile(original, place)
                places.append(place)
        return places

    def prepare_draft(self, body: bytes | None = None) -> Path:
        """A prepared copy of the draft that won its trial."""
        draft = self.store.pair_paths(self.pair)[1]
        assert draft is not None
        drafts, source = PreparedDrafts(self.home), Source.of(draft)
        with drafts.lock(source):
            path = drafts.path(source, "q4_0")
            path.write_bytes(draft.read_bytes() if body is None else body)
            drafts.keep(source, TRIAL)
        return path

    def know(self, pair: Pair) -> Path:
        """Lays a pair file into the organisation's folder."""
        path = self.org / f"{pair.name}.toml"
        path.write_text(pair_text(pair), encoding="utf-8")
        return path


def model_file(path: Path, *sources: HubSource) -> ModelFile:
    body = path.read_bytes()
    return ModelFile(path.name, len(body), hashlib.sha256(body).hexdigest(), sources or (HUB,))


def make_shelf(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    elsewhere, org = folder / "模型 élsewhere", folder / "org"
    elsewhere.mkdir()
    org.mkdir()
    monkeypatch.setenv("LOCALSPEC_HOME", str(folder / "störe 🗄"))
    monkeypatch.setenv("LOCALSPEC_PAIRS", str(org))
    target = write_llama(elsewhere / "tiny-target.gguf", seed=1)
    draft = write_llama(elsewhere / "tiny-draft.gguf", seed=1, noise=0.05)
    pair = Pair("tiny", "A tiny pair", "MIT", 512, ("test",), model_file(target), model_file(draft))
    shelf = Shelf(Store(), elsewhere, org, pair)
    shelf.know(pair)
    return shelf


def run(*arguments: str | Path, stdin: str = "") -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "localspec", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def listing(folder: Path) -> list[tuple[str, int, int]]:
    """Everything in the folder, with sizes and times."""
    return sorted(
        (str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    )
