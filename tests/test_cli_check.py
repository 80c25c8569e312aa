"""`localspec check`: files, pairs' names and models of a hub; what is printed, and the exit code."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from localspec import memory_needed
from localspec.cli import main
from localspec.decoding.calibrate import Calibration
from localspec.decoding.costs import CostTable
from localspec.engine import contest
from localspec.engine import measured_costs as calibration
from localspec.engine.engine import Engine
from localspec.engine.options import EngineOptions
from localspec.errors import SourceUnreachable, UnknownPair
from localspec.gguf.metadata import read_metadata
from localspec.hub import named_models as subject
from localspec.measure import prospect
from localspec.pairs.catalogue import HubSource, ModelFile, Pair
from localspec.pairs.reference import Reference
from localspec.store.store import Store
from localspec.system.progress import readable

from .tinygguf import write_llama, write_mamba

KINDS = ("weights", "cache", "passes")


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Store()


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    target = write_llama(tmp_path / "target.gguf", n_layer=2)
    return target, write_llama(tmp_path / "draft.gguf", n_layer=1, n_ctx_train=64)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


def of(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    described: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if described["fits"] else 1)
    assert result.stderr == ""
    return described


def test_two_files_that_fit(files: tuple[Path, Path]) -> None:
    result = run(*files, "-c", "64")
    assert result.exit_code == 0
    first, verdict, *lines = result.stdout.splitlines()
    assert first == "draft.gguf can draft for target.gguf: all 300 ids mean the same to both."
    assert verdict == "Verdict: fits."
    assert "  harmless          Both tokenizers are of the kind 'gpt2'." in lines
    weights = [file.stat().st_size for file in files]
    together = memory_needed(*files, n_ctx=64)
    assert re.fullmatch(
        rf"Memory for 64 tokens of context, weights, cache and passes: target {weights[0] / 1000:.0f} kB, 16 kB and "
        rf"\d+ kB; draft {weights[1] / 1000:.0f} kB, 8 kB and \d+ kB; {readable(together.total)} together\.",
        lines[-2],
    )
    assert lines[-1] == "Expected speedup: not measured yet: localspec calibrate."


def test_json(files: tuple[Path, Path]) -> None:
    described = of(*files)
    assert described["verdict"] == "fits, with reservations"
    assert (described["target"], described["draft"]) == tuple(map(str, files))
    assert described["memory"]["target"]["n_ctx"] == 512
    assert described["memory"]["draft"]["n_ctx"] == 64
    parts = [described["memory"][role][kind] for role in ("target", "draft") for kind in KINDS]
    assert described["memory"]["total"] == sum(parts) == memory_needed(*files).total
    assert described["expected_speedup"] is None
    (reservation,) = [one for one in described["reasons"] if one["severity"] == "costs acceptance"]
    assert reservation["topic"] == "context"
    assert {one["severity"] for one in described["reasons"]} == {"harmless", "costs acceptance"}


def test_files_that_do_not_fit(files: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other.gguf", changed_tokens={token: f"w{token}" for token in range(9)})
    result = run(files[0], other)
    assert result.exit_code == 1
    sentence, remedy, verdict, *lines = result.stdout.splitlines()
    assert sentence.startswith(
        "other.gguf cannot draft for target.gguf: their vocabularies differ in 3% of the ids"
    )
    assert (remedy, verdict) == ("--no-draft goes on without a draft.", "Verdict: does not fit.")
    shown = lines.index("The first ids that differ, in the target and in the draft:")
    assert lines[shown + 1].split() == ["0", "'Ā'", "and", "'w0'"]
    assert not any("speedup" in line for line in lines)
    assert len(of(files[0], other)["differing"]) == 5


def test_a_target_alone(files: tuple[Path, Path], tmp_path: Path) -> None:
    assert of(files[0])["draft"] is None
    mamba = write_mamba(tmp_path / "mamba.gguf")
    described = of(mamba)
    assert described["sentence"].startswith("Text that repeats itself can be drafted for mamba.gguf")
    assert 0 < described["memory"]["target"]["cache"] < 100_000, "a running state"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"<html>Sign in</html>", "web page"),
        (b"GGUF\3\0\0\0", "cut off"),
        (None, "There is no file"),
    ],
)
def test_a_bad_file_is_one_sentence(
    files: tuple[Path, Path], tmp_path: Path, content: bytes | None, words: str
) -> None:
    bad = tmp_path / "bad.gguf"
    if content is not None:
        bad.write_bytes(content)
    for arguments in ((bad,), (bad, files[1]), (files[0], bad), ("bad.gguf",)):
        described = of(*arguments)
        assert words in described["sentence"] and "bad.gguf" in described["sentence"]
        assert described["verdict"] == "does not fit" and described["memory"] is None
        for load in ([], ["--load"]):
            result = run(*arguments, *load)
            assert (result.exit_code, result.stdout) == (1, ""), "nothing was judged"
            assert result.stderr == f"error: {described['sentence']}\n{described['remedy']}\n"


def test_a_directory_without_a_slash(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    assert run("models").stderr.startswith("error: models is a directory.")
    assert of("models")["sentence"] == "models is a directory."


def test_an_unknown_name(files: tuple[Path, Path]) -> None:
    for arguments in (("nothing",), (files[0], "nothing"), ("",)):
        result = run(*arguments)
        assert result.exit_code == 1
        assert "There is no pair named" in result.stderr and result.stdout == ""


def test_a_context_of_no_tokens_is_wrong_usage(files: tuple[Path, Path]) -> None:
    assert run(*files, "-c", "0").exit_code == 2


# -- names of pairs


def stored(store: Store, path: Path) -> ModelFile:
    """The file as one of a pair, with its bytes in the store."""
    data = path.read_bytes()
    file = ModelFile(path.name, len(data), hashlib.sha256(data).hexdigest(), ())
    store.prepare()
    folder = store.home / "files" / file.sha256
    folder.mkdir(parents=True)
    path.rename(folder / path.name)
    return file


def known(monkeypatch: pytest.MonkeyPatch, target: ModelFile, draft: ModelFile | None) -> None:
    """One pair named tiny is in the catalogue."""
    tiny = Pair("tiny", "", "MIT", 64, (), target, draft)

    def pair(name: str, home: Path | None = None) -> Pair:
        if name != "tiny":
            raise UnknownPair(f"There is no pair named {name!r}.")
        return tiny

    monkeypatch.setattr(subject, "pair", pair)


def test_a_name_stands_for_both_files_or_for_the_target(
    store: Store, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = write_llama(tmp_path / "other.gguf")
    known(monkeypatch, *(stored(store, file) for file in files))
    both = of("tiny")
    assert [Path(both[role]).name for role in ("target", "draft")] == ["target.gguf", "draft.gguf"]
    assert [Path(of("tiny", other)[role]).name for role in ("target", "draft")] == [
        "target.gguf",
        "other.gguf",
    ]
    assert [Path(of(other, "tiny")[role]).name for role in ("target", "draft")] == [
        "other.gguf",
        "target.gguf",
    ]


def test_a_pair_that_is_not_here_is_looked_at_on_its_hub(
    store: Store, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    far = ModelFile("draft.gguf", 9, "0" * 64, (HubSource("org/repo", "1" * 40),))
    known(monkeypatch, stored(store, files[0]), far)
    asked = []

    def read_remote_metadata(file: ModelFile) -> object:
        asked.append(file.file)
        return read_metadata(files[1])

    monkeypatch.setattr(subject, "read_remote_metadata", read_remote_metadata)
    assert of("tiny", "-c", "64")["verdict"] == "fits"
    assert asked == ["draft.gguf"]
    offline = run("tiny", "--offline")
    assert offline.exit_code == 1 and "localspec pull tiny" in offline.stderr


def test_a_pair_that_no_hub_has_must_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, ModelFile("target.gguf", 9, "0" * 64, ()), None)
    result = run("tiny")
    assert result.exit_code == 1 and "localspec pull tiny" in result.stderr


def test_a_model_of_a_hub(store: Store, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    here = stored(store, files[1])

    def resolve(reference: Reference, *, offline: bool, home: Path) -> ModelFile:
        asked.append((str(reference), offline))
        if reference.repo == "org/gone":
            raise SourceUnreachable("The hub does not answer.", "Try again later.")
        return here if reference.choice == "Q4_0" else ModelFile("far.gguf", 9, "0" * 64, ())

    monkeypatch.setattr(subject, "resolve", resolve)
    monkeypatch.setattr(subject, "read_remote_metadata", lambda _file: read_metadata(files[0]))
    assert of("org/repo:q4_k_m", "org/repo:Q4_0", "-c", "64")["draft"].endswith("/draft.gguf")
    assert asked == [("org/repo:Q4_K_M", False), ("org/repo:Q4_0", False)]
    gone = run(files[0], "org/gone:Q4_0", "--offline")
    assert gone.exit_code == 1 and "does not answer" in gone.stderr
    assert asked[2:] == [("org/gone:Q4_0", True)]
    pinned = run("org/repo:Q4_K_M", "--offline")
    assert pinned.exit_code == 1 and "localspec pull org/repo:Q4_K_M" in pinned.stderr
    assert "There is no file" in of("folder/bad.gguf")["sentence"]


# -- what it gains here


def test_the_speedup_is_that_of_measured_costs(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seconds = {True: {1: 0.1, 4: 0.12, 17: 0.2}, False: {1: 0.01}}
    monkeypatch.setattr(
        calibration,
        "calibrate",
        lambda _context, *, verifies, **_options: Calibration(CostTable(seconds[verifies]), steady=True),
    )
    options = EngineOptions(n_ctx=256)
    ours, theirs = map(read_metadata, files)
    home = tmp_path / "measured"
    assert prospect.prospect(ours, theirs, options, home).gain is None
    engine = Engine(*files, options)
    try:
        calibration.measure_costs(engine, calibration.known_costs(engine, home), home)
    finally:
        engine.close()
    gain = prospect.prospect(ours, theirs, options, home).gain
    assert gain is not None
    assert gain["cost_ratio"] == 0.1
    assert [entry["acceptance"] for entry in gain["estimates"]] == [0.6, 0.7, 0.8]
    assert gain["estimates"][2]["speedup"] > 1.5
    assert prospect.prospect(ours, theirs, EngineOptions(n_ctx=128), home).gain is None
    assert prospect.prospect(ours, theirs, EngineOptions(n_ctx=256, threads=77), home).gain is None
    alone = prospect.prospect(ours, None, options, home).gain
    assert alone is not None and alone["cost_ratio"] == 0
    monkeypatch.setattr("localspec.engine.measured_costs.default_home", lambda: home)
    line = run(*files, "-c", "256").stdout.splitlines()[-1]
    assert line.startswith("Expected speedup, by the share of drafted tokens that stand (assumed): ")
    assert f"{gain['estimates'][1]['speedup']:.2f}x at 70%" in line
    assert "it pays above" in line
    line = run(files[0], "-c", "256").stdout.splitlines()[-1]
    told = "Expected speedup where text repeats itself, by the share of tokens copied from it that stand (assumed): "
    assert line.startswith(told)


def test_the_prepared_copy_counts_where_it_will_draft(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = write_llama(tmp_path / "copy.gguf", n_layer=1, n_ctx_train=64)
    asked = []

    def kept(model: Any, options: EngineOptions, home: Path | None, *, verifies: bool, **_: Any) -> CostTable:
        asked.append((model.path.name, options.n_ctx, verifies))
        return CostTable({1: 1.0})

    monkeypatch.setattr(contest, "kept_costs", kept)
    monkeypatch.setattr(contest, "chosen_copy", lambda *_: copy)
    prospect.prospect(*map(read_metadata, files), EngineOptions(n_ctx=256))
    assert asked == [("target.gguf", 256, True), ("copy.gguf", 64, False)]
