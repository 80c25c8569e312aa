"""`localspec suggest`: drafts for a target and pairs for a machine, on generated models and made-up catalogues."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from localspec import memory_needed
from localspec.cli import main, tables, terminal
from localspec.engine import measured_costs as calibration
from localspec.engine.libraries import preferred
from localspec.engine.options import EngineOptions
from localspec.errors import SourceUnreachable
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.measure.fitting_pairs import fitting_pairs
from localspec.measure.speed import (
    EFFICIENCY,
    READ_ALOUD,
    Speed,
    Speeds,
    assumed_acceptance,
    bytes_read,
    weights,
)
from localspec.measure.suggest import LeftOut, Suggestion, Suggestions, Target, suggest_drafts
from localspec.pairs import catalogue
from localspec.pairs.pair import HubSource, ModelFile, Pair
from localspec.store import candidates as finding
from localspec.store.candidates import Candidate, candidates
from localspec.store.measurements import this_machine
from localspec.store.prepared import PreparedDrafts, Source, Trial
from localspec.store.store import Store
from localspec.system.bandwidth import read_bandwidth
from localspec.system.cores import physical_cores
from tests.tinygguf import write_llama, write_mamba

HUB = HubSource("someone/some-GGUF", "0" * 40)
N_CTX = 256
CATALOGUE = catalogue.pairs()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, drafts for it of two sizes, and others that cannot draft, or that are too large to."""
    folder = tmp_path_factory.mktemp("models")
    write_llama(folder / "target.gguf", n_layer=12)
    write_llama(folder / "small.gguf", n_layer=1)
    write_llama(folder / "middle.gguf", n_layer=3)
    write_llama(folder / "near.gguf", n_layer=10)
    write_llama(folder / "large.gguf", n_layer=13)
    write_llama(folder / "foreign.gguf", n_layer=1, changed_tokens={i: f"<other{i}>" for i in range(60)})
    write_llama(folder / "lame.gguf", n_layer=1, add_bos=True)
    write_mamba(folder / "mamba.gguf", n_layer=40)
    (folder / "broken.gguf").write_bytes(b"GGUF and no more")
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store beside an empty cache, with a catalogue that holds nothing."""
    home = tmp_path / "home"
    monkeypatch.setenv("LOCALSPEC_HOME", str(home))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "default_home", lambda: home)
    know([], monkeypatch)
    store = Store()
    store.prepare()
    return store


def know(pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes these the whole catalogue."""
    by_name = {pair.name: pair for pair in pairs}
    for module in (catalogue, finding):
        monkeypatch.setattr(module, "pairs", lambda: list(pairs))
    monkeypatch.setattr("localspec.store.store.pairs", lambda: list(pairs))
    monkeypatch.setattr("localspec.hub.named_models.pair", lambda name, home=None: by_name[name])


def described(path: Path) -> ModelFile:
    body = path.read_bytes()
    return ModelFile(path.name, len(body), hashlib.sha256(body).hexdigest(), (HUB,))


def paired(target: Path, draft: Path | None, name: str = "couple") -> Pair:
    return Pair(name, "a pair", "MIT", 512, (), described(target), described(draft) if draft else None)


def keep(store: Store, path: Path) -> Path:
    """A copy of the file in the store."""
    file = described(path)
    place = store.home / "files" / file.sha256 / file.file
    place.parent.mkdir(parents=True)
    place.write_bytes(path.read_bytes())
    return place


def calibrated(store: Store, path: Path, *, verifies: bool, seconds: float) -> None:
    """As if the model had been calibrated here: wide passes of it cost what a narrow one does."""
    metadata = read_metadata(path)
    facts = {
        "file": path.name,
        "bytes": metadata.size_bytes,
        "format": metadata.file_type,
        "verifies": verifies,
        "threads": physical_cores(),
        "gpu_layers": 0,
        "repack": True,
        "cache": ["f16", "f16"],
        "n_ctx": N_CTX,
        "widths": [1, 512],
        "build": preferred().build,
        "machine": this_machine(),
    }
    data = {
        "format": calibration.FORMAT,
        "facts": facts,
        "seconds": {str(width): seconds for width in (1, 2, 4, 8, 16, 32)},
        "slope": 0.0,
        "row_slope": 0.0,
    }
    folder = store.home / "calibration"
    folder.mkdir(exist_ok=True)
    (folder / f"{path.stem}-{verifies}.json").write_text(json.dumps(data), encoding="utf-8")


# Candidates


def test_every_file_is_found_once(
    store: Store, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know([paired(models / "target.gguf", models / "small.gguf")], monkeypatch)
    kept = keep(store, models / "small.gguf")
    beside = tmp_path / "beside"
    beside.mkdir()
    for name in ("target.gguf", "small.gguf"):
        (beside / name).write_bytes((models / name).read_bytes())
    (beside / "another-name.gguf").hardlink_to(beside / "target.gguf")
    (beside / "notes.txt").write_text("no model")
    (beside / "split-00001-of-00002.gguf").write_bytes(b"GGUF1")
    (beside / "split-00002-of-00002.gguf").write_bytes(b"GGUF2")
    found = {item.name: item for item in candidates(store, beside / "target.gguf")}
    assert set(found) == {"small.gguf", "another-name.gguf", "split-00001-of-00002.gguf"}
    assert (found["small.gguf"].path, found["small.gguf"].origin) == (kept, "store")
    assert [pair.name for pair in found["small.gguf"].pairs] == ["couple"]


def test_a_file_in_the_cache_counts_as_the_catalogues(
    store: Store, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know([paired(models / "target.gguf", models / "small.gguf")], monkeypatch)
    repo = tmp_path / "cache" / "models--someone--some-GGUF"
    snapshot, blobs = repo / "snapshots" / ("0" * 40), repo / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    file = described(models / "small.gguf")
    (blobs / file.sha256).write_bytes((models / "small.gguf").read_bytes())
    (snapshot / "small.gguf").symlink_to(blobs / file.sha256)
    (found,) = candidates(store)
    assert (found.file, found.origin, found.path) == (file, "Hugging Face cache", snapshot / "small.gguf")


def test_prepared_copies_and_targets_that_are_not_here_are_no_candidates(
    store: Store, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know([paired(models / "target.gguf", models / "small.gguf")], monkeypatch)
    source = Source.of(keep(store, models / "small.gguf"))
    prepared = PreparedDrafts(store.home)
    with prepared.lock(source):
        prepared.path(source, "q4_0").write_bytes(b"GGUF copy")
        prepared.keep(source, Trial({}, {"q4_0": 0.1, "original": 0.2}, "q4_0"))
    assert [item.name for item in candidates(store)] == ["small.gguf"]


# Judging and ranking


def suggested(
    models: Path, store: Store, *names: str, look: Callable[[ModelFile], object] | None = None
) -> Suggestions:
    metadata = read_metadata(models / "target.gguf")
    target = Target("target.gguf", metadata.size_bytes, None, metadata)
    found = [Candidate(name, (models / name).stat().st_size, models / name, "folder") for name in names]
    return suggest_drafts(target, found, EngineOptions(n_ctx=N_CTX), store.home, look)  # type: ignore[arg-type]


def names_of(found: list[Suggestion] | list[LeftOut]) -> list[str]:
    return [one.draft.name for one in found]


def test_what_fits_is_suggested_and_the_rest_says_why(store: Store, models: Path) -> None:
    everything = [path.name for path in models.glob("*.gguf")]
    found = suggested(models, store, *everything)
    assert names_of(found.drafts) == ["lame.gguf", "small.gguf", "middle.gguf", "foreign.gguf"]
    assert "their vocabularies differ" in found.drafts[3].sentence
    reasons = {one.draft.name: one.reason for one in found.left_out}
    assert set(reasons) == {"large.gguf", "near.gguf", "mamba.gguf", "broken.gguf"}
    assert re.fullmatch(
        r"it is too large to draft: a pass reads 8\d% of what .* 50% does not pay", reasons["near.gguf"]
    )
    assert reasons["large.gguf"] == "it is not smaller than the target"
    assert reasons["mamba.gguf"] == "it is not smaller than the target"
    assert "not a usable GGUF file" in reasons["broken.gguf"]


def test_measured_drafts_go_first_and_those_that_never_pay_last(store: Store, models: Path) -> None:
    calibrated(store, models / "target.gguf", verifies=True, seconds=1.0)
    calibrated(store, models / "middle.gguf", verifies=False, seconds=0.1)
    found = suggested(models, store, "small.gguf", "middle.gguf")
    assert names_of(found.drafts) == ["middle.gguf", "small.gguf"]
    best, other = found.drafts
    assert best.speedup is not None and best.speedup > 1.5
    assert other.speedup is None
    calibrated(store, models / "small.gguf", verifies=False, seconds=0.01)
    assert names_of(suggested(models, store, "small.gguf", "middle.gguf").drafts) == [
        "small.gguf",
        "middle.gguf",
    ]
    calibrated(store, models / "small.gguf", verifies=False, seconds=9.0)
    found = suggested(models, store, "small.gguf", "middle.gguf", "lame.gguf")
    assert names_of(found.drafts) == ["middle.gguf", "lame.gguf", "small.gguf"]
    assert found.drafts[-1].speedup == 1


def test_a_large_draft_that_was_measured_to_pay_is_suggested(store: Store, models: Path) -> None:
    calibrated(store, models / "target.gguf", verifies=True, seconds=1.0)
    calibrated(store, models / "near.gguf", verifies=False, seconds=0.1)
    assert names_of(suggested(models, store, "near.gguf").drafts) == ["near.gguf"]
    calibrated(store, models / "near.gguf", verifies=False, seconds=2.0)
    assert names_of(suggested(models, store, "near.gguf").left_out) == ["near.gguf"]


def test_of_what_is_not_measured_low_bits_and_strangers_are_not_first_for_being_small(
    store: Store, models: Path, tmp_path: Path
) -> None:
    """Without a template a file is a little smaller; the format is what its header says."""
    write_llama(tmp_path / "a-Q2_K.gguf", n_layer=1, template=None, extra={"general.file_type": 10})
    write_llama(tmp_path / "b-Q4_K_M.gguf", n_layer=1, extra={"general.file_type": 15})
    names = ("a-Q2_K.gguf", "b-Q4_K_M.gguf")
    assert (tmp_path / names[0]).stat().st_size < (tmp_path / names[1]).stat().st_size
    metadata = read_metadata(models / "target.gguf")
    target = Target("target.gguf", metadata.size_bytes, None, metadata)
    found = [Candidate(name, (tmp_path / name).stat().st_size, tmp_path / name, "folder") for name in names]
    drafts = suggest_drafts(target, found, EngineOptions(n_ctx=N_CTX), store.home).drafts
    assert names_of(drafts) == ["b-Q4_K_M.gguf", "a-Q2_K.gguf"]
    assert drafts[0].speedup is None
    draft = read_metadata(tmp_path / names[1])
    related = assumed_acceptance(metadata, draft, vouched=False)
    stranger = replace(draft, architecture="other")
    stranger = replace(
        stranger,
        key_values={key.replace("llama.", "other."): value for key, value in draft.key_values.items()},
    )
    assert assumed_acceptance(metadata, stranger, vouched=False) < related
    assert assumed_acceptance(metadata, stranger, vouched=True) == related
    assert related < assumed_acceptance(metadata, read_metadata(models / "middle.gguf"), vouched=False)


# How fast


def outline_of(name: str) -> Metadata:
    found = next(file for pair in catalogue.pairs() for file in pair.files if file.file.startswith(name))
    assert found.outline is not None
    return found.outline


def test_a_speed_comes_from_this_model_another_or_memory(store: Store, models: Path) -> None:
    target, small = (read_metadata(models / name) for name in ("target.gguf", "small.gguf"))
    asked: list[str] = []

    def bandwidth() -> float:
        asked.append("memory")
        return 1000.0 * target.size_bytes

    by_memory = Speeds(store.home, bandwidth).of(target)
    assert by_memory is not None
    assert (by_memory.tokens_per_second, by_memory.basis) == (pytest.approx(1000 * EFFICIENCY), "memory")
    calibrated(store, models / "target.gguf", verifies=True, seconds=0.5)
    speeds = Speeds(store.home, bandwidth)
    assert speeds.of(target) == Speed(2.0, "this model")
    other = speeds.of(small)
    assert other is not None
    assert other.basis == "another model"
    assert other.tokens_per_second == pytest.approx(2 * target.size_bytes / small.size_bytes)
    assert asked == ["memory"]
    assert (Speed(4.9, "memory").is_readable, Speed(5.0, "memory").is_readable) == (False, True)


def test_where_a_gpu_computes_memory_tells_nothing(
    store: Store, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(preferred()), "resolve_gpu_layers", lambda *_: 99)
    assert Speeds(store.home, lambda: 1e9).of(read_metadata(models / "target.gguf")) is None


def test_of_a_mixture_of_experts_only_those_in_use_are_read() -> None:
    """Qwen3 30B-A3B has 30.5 billion weights, of which 3.3 billion answer for a token."""
    mixed, dense = outline_of("Qwen3-30B-A3B"), outline_of("Qwen3-32B")
    assert 0.08 < bytes_read(mixed) / mixed.size_bytes < 0.12
    assert bytes_read(dense) == dense.size_bytes
    assert weights(dense) == pytest.approx(31.2e9, rel=0.02)  # without embeddings, as its card says
    assert weights(mixed) == pytest.approx(29.9e9, rel=0.02)


def test_memory_is_read_at_some_speed() -> None:
    assert read_bandwidth(0.0) > 1e8


def test_the_catalogue_vouches_for_what_cannot_be_read(
    store: Store, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = paired(models / "target.gguf", models / "small.gguf")
    other = paired(models / "large.gguf", models / "middle.gguf", "other")
    know([own, other], monkeypatch)
    target = Target("target.gguf", own.target.bytes, own.target, None)
    found = suggest_drafts(target, candidates(store), EngineOptions(), store.home)
    assert names_of(found.drafts) == ["small.gguf"]
    assert found.drafts[0].sentence == "The catalogue pairs small.gguf with target.gguf."
    assert found.left_out[0].reason == "the target is not on this disk, so its vocabulary is not known"


def test_what_is_elsewhere_is_looked_at_until_the_network_fails(
    store: Store, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [paired(models / "large.gguf", models / name, name[:3]) for name in ("small.gguf", "middle.gguf")]
    know(pairs, monkeypatch)
    metadata = read_metadata(models / "target.gguf")
    target = Target("target.gguf", metadata.size_bytes, None, metadata)

    def look(file: ModelFile) -> object:
        return read_metadata(models / file.file)

    found = suggest_drafts(target, candidates(store), EngineOptions(), store.home, look)  # type: ignore[arg-type]
    assert names_of(found.drafts) == ["small.gguf", "middle.gguf"]
    assert found.left_out == []
    asked: list[str] = []

    def fail(file: ModelFile) -> object:
        asked.append(file.file)
        raise SourceUnreachable("No network.", file=file.file)

    found = suggest_drafts(target, candidates(store), EngineOptions(), store.home, fail)  # type: ignore[arg-type]
    assert (found.drafts, len(asked)) == ([], 1)
    assert {one.reason for one in found.left_out} == {
        "it is not on this disk, so its vocabulary is not known"
    }


# Pairs for a machine


def test_pairs_by_what_they_take(store: Store, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    little = paired(models / "small.gguf", None, "little")
    huge = replace(little, name="huge", target=replace(little.target, bytes=10**10, sha256="1" * 64))
    heavy = replace(little, name="heavy", target=replace(little.target, bytes=10**9, sha256="2" * 64))
    know([little, huge, heavy], monkeypatch)
    keep(store, models / "small.gguf")
    options = EngineOptions(n_ctx=4096)
    speeds = Speeds(store.home, lambda: 1e9)
    fits = fitting_pairs([little, huge, heavy], store, options, total=2 * 10**9, free=10**8, speeds=speeds)
    assert [(fit.pair.name, fit.room, fit.exact, fit.on_disk) for fit in fits] == [
        ("little", "fits", True, True),
        ("heavy", "fits when memory is freed", False, False),
        ("huge", "does not fit", False, False),
    ]
    metadata = read_metadata(models / "small.gguf")
    assert fits[0].needed > metadata.size_bytes
    assert fits[1].needed == pytest.approx(1.27e9)
    needed = fits[1].needed
    for share, room in ((0.899, "fits when memory is freed"), (0.901, "does not fit")):
        (fit,) = fitting_pairs([heavy], store, options, total=int(needed / share), free=10**8, speeds=speeds)
        assert fit.room == room, "a tenth of the memory is left to the system and other programs"
    doubled = fitting_pairs(
        [heavy], store, EngineOptions(n_ctx=8192), total=2 * 10**9, free=10**8, speeds=speeds
    )
    assert doubled[0].needed == pytest.approx(1.42e9)


def test_experts_without_a_width_of_their_own_are_as_wide_as_a_layer() -> None:
    (granite,) = [pair.target.outline for pair in CATALOGUE if pair.name == "granite-4.0-h-tiny"]
    assert granite is not None
    assert weights(granite) > 40 * 64 * 3 * 1536 * 512
    assert 0.08 < weights(granite, read=True) / weights(granite) < 0.15


def test_what_is_too_slow_to_read_stays_last_and_known(store: Store) -> None:
    """With 20 GB a second 14 GB/s reach a processor: 5.6 tokens/s of a 4B model, 2.8 of an 8B one."""
    known = CATALOGUE
    memory = {"total": 10**11, "free": 5 * 10**10}
    options = EngineOptions(n_ctx=4096)
    fits = fitting_pairs(known, store, options, **memory, speeds=Speeds(store.home, lambda: 20e9))
    assert all(fit.room == "fits" for fit in fits)
    assert [fit.pair.name for fit in fits if not fit.exact] == ["falcon-h1-0.5b"]  # whose shape is not stated
    quick = [fit.pair.name for fit in fits if not fit.is_slow]
    assert quick[:3] == ["qwen3.6-35b-a3b", "qwen3-coder-30b-a3b", "qwen3-30b-a3b"]
    assert len(fits) == len(known)
    slow = [fit.speed.tokens_per_second for fit in fits[len(quick) :] if fit.speed]
    assert slow == sorted(slow, reverse=True)
    assert all(speed < READ_ALOUD for speed in slow)
    less = memory | {"free": 12 * 10**9}
    rooms = {
        fit.pair.name: (place, fit.room)
        for place, fit in enumerate(
            fitting_pairs(known, store, options, **less, speeds=Speeds(store.home, lambda: 20e9))
        )
    }
    assert rooms["qwen3-4b"][0] < rooms["qwen3-30b-a3b"][0] < rooms["qwen3-8b"][0]  # what is slow comes last
    assert (rooms["qwen3-30b-a3b"][1], rooms["qwen3-8b"][1]) == ("fits when memory is freed", "fits")
    faster = fitting_pairs(known, store, options, **memory, speeds=Speeds(store.home, lambda: 1e12))
    assert faster[0].pair.name == "qwen3.6-35b-a3b"


def test_the_recommendation_can_be_read_aloud(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        ("system.ram", "total_memory", 10**11),
        ("system.ram", "free_memory", 5 * 10**10),
    ):
        monkeypatch.setattr(f"localspec.{module}.{name}", lambda value=value: value)
    known = [pair for pair in CATALOGUE if "14b" in pair.name or "1.5b" in pair.name]
    know(known, monkeypatch)
    monkeypatch.setattr("localspec.measure.speed.Speeds._bandwidth", 20e9)
    done = run()
    assert "Run: localspec pull qwen2.5-coder-1.5b\n" in done.stdout
    assert (
        "Too slow here to be recommended, under the 5 tokens/s of reading aloud: qwen2.5-coder-14b, qwen3-14b."
        in (" ".join(done.stdout.split()))
    )
    assert "an estimate for the target alone (how fast this machine reads memory, now)" in done.stdout
    result = json.loads(run("--json").stdout)
    assert [(one["pair"], one["too_slow"]) for one in result["pairs"]] == [
        ("qwen2.5-coder-1.5b", False), ("qwen2.5-coder-14b", True), ("qwen3-14b", True),
    ]  # fmt: skip
    assert [one["expected_tokens_per_second"] for one in result["pairs"]] == [12.5, 1.6, 1.6]
    know(known[1:], monkeypatch)
    assert "None should reach the 5 tokens/s of reading aloud; the fastest stands first." in run().stdout


def test_a_narrow_window_cuts_no_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"qwen2.5-coder-{size}-instruct-q4_k_m.gguf" for size in ("0.5b", "1.5b", "3b")]
    monkeypatch.setattr(terminal, "is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", "60")
    tables.show_table(
        ("draft", "size", "where", "expected here", "verdict"),
        [(name, "491 MB", "Hugging Face cache", "not measured", "fits") for name in names],
    )
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if not line.startswith("  ")] == names
    assert "  size 491 MB, where Hugging Face cache, expected here not\n  measured, verdict fits\n" in shown
    monkeypatch.setenv("COLUMNS", "120")
    tables.show_table(("draft", "size"), [(names[0], "491 MB")], title="Drafts")
    assert "draft" in capsys.readouterr().out.splitlines()[2], "where there is room it is a table"


# The command


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["suggest", *map(str, arguments)])


def test_drafts_for_a_file(store: Store, models: Path) -> None:
    target = models / "target.gguf"
    done = run(target, "--offline", "-c", str(N_CTX))
    assert done.exit_code == 0
    rows = [line.split()[0] for line in done.stdout.splitlines() if ".gguf" in line and "folder" in line]
    assert rows == ["lame.gguf", "small.gguf", "middle.gguf", "foreign.gguf"]
    best = shlex.split(done.stdout.split("Run: ")[1].splitlines()[0])
    assert best == ["localspec", "chat", "-m", str(target), "-md", str(models / "lame.gguf")]
    assert "4 left out; --all says why." in done.stdout
    told = run(target, "--offline", "--all").stdout
    assert "Left out: large.gguf: it is not smaller than the target." in told


def test_drafts_as_json(store: Store, models: Path) -> None:
    calibrated(store, models / "target.gguf", verifies=True, seconds=1.0)
    calibrated(store, models / "middle.gguf", verifies=False, seconds=0.1)
    result = json.loads(run(models / "target.gguf", "--offline", "--json", "--all", "-c", str(N_CTX)).stdout)
    assert [one["draft"] for one in result["drafts"]] == [
        "middle.gguf",
        "lame.gguf",
        "small.gguf",
        "foreign.gguf",
    ]
    assert result["run"] == result["drafts"][0]["run"]
    assert result["drafts"][0]["expected_speedup"] > 1.5
    assert result["left_out_count"] == len(result["left_out"]) == 4


def test_a_pair_by_name(store: Store, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    know([paired(models / "target.gguf", models / "small.gguf")], monkeypatch)
    result = json.loads(run("couple", "--offline", "--json").stdout)
    assert [(one["draft"], one["origin"]) for one in result["drafts"]] == [("small.gguf", "catalogue")]
    assert result["run"] == "localspec chat couple"
    kept = [keep(store, models / name) for name in ("target.gguf", "small.gguf", "middle.gguf")]
    result = json.loads(run("couple", "--offline", "--json").stdout)
    runs = {one["draft"]: one["run"] for one in result["drafts"]}
    assert runs["small.gguf"] == "localspec chat couple"
    assert shlex.split(runs["middle.gguf"]) == ["localspec", "chat", "-m", str(kept[0]), "-md", str(kept[2])]


def test_a_file_of_ones_own_that_is_a_catalogues_target(
    store: Store, models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its draft is not here: it is named as on its hub, because the pair's own target is not here either."""
    know([paired(models / "target.gguf", models / "small.gguf")], monkeypatch)
    alone = tmp_path / "alone" / "target.gguf"
    alone.parent.mkdir()
    alone.write_bytes((models / "target.gguf").read_bytes())
    result = json.loads(run(alone, "--offline", "--json").stdout)
    (one,) = result["drafts"]
    assert shlex.split(one["run"]) == [
        "localspec", "chat", "-m", str(alone), "-md", "someone/some-GGUF:small.gguf",
    ]  # fmt: skip


def test_a_recurrent_target_finds_drafts_too(store: Store, models: Path) -> None:
    done = run(models / "mamba.gguf", "--offline")
    assert done.exit_code == 0
    assert "small.gguf" in done.stdout


def test_nothing_found(store: Store, models: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "target.gguf"
    alone.parent.mkdir()
    alone.write_bytes((models / "target.gguf").read_bytes())
    done = run(alone, "--offline")
    assert (done.exit_code, "No draft for target.gguf was found" in done.stdout) == (0, True)


def test_a_target_that_is_not_there(store: Store, tmp_path: Path) -> None:
    done = run(tmp_path / "none.gguf", "--offline")
    assert done.exit_code == 1
    assert "There is no file" in done.stderr


def test_pairs_for_this_machine(store: Store, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.system.ram.total_memory", lambda: 4 * 10**9)
    monkeypatch.setattr("localspec.system.ram.free_memory", lambda: 3 * 10**9)
    little = paired(models / "target.gguf", models / "small.gguf", "little")
    huge = replace(little, name="huge", target=replace(little.target, bytes=10**10, sha256="1" * 64))
    know([huge, little], monkeypatch)
    done = run()
    assert done.exit_code == 0
    assert "Run: localspec pull little" in done.stdout
    assert "1 left out; --all says why." in done.stdout
    for name in ("target.gguf", "small.gguf"):
        keep(store, models / name)
    result = json.loads(run("--json", "--all").stdout)
    assert [(one["pair"], one["run"], one["memory_is_exact"]) for one in result["pairs"]] == [
        ("little", "localspec chat little", True)
    ]
    assert result["left_out"][0]["reason"].startswith("it needs about ")
    know([huge], monkeypatch)
    assert "No pair fits" in run().stdout


def test_what_fits_is_what_a_load_takes(store: Store, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same figure as `memory_needed`, and the same rule as a load's: no more than is free."""
    know([paired(models / "target.gguf", models / "small.gguf")], monkeypatch)
    kept = [keep(store, models / name) for name in ("target.gguf", "small.gguf")]
    needed = memory_needed(*kept, n_ctx=N_CTX).total
    for free, total, room in (
        (needed, 2 * needed, "fits"),
        (needed - 1, 2 * needed, "fits when memory is freed"),
        (needed - 1, int(1.12 * needed), "fits when memory is freed"),
        (needed - 1, int(1.1 * needed), None),
    ):
        monkeypatch.setattr("localspec.system.ram.free_memory", lambda free=free: free)
        monkeypatch.setattr("localspec.system.ram.total_memory", lambda total=total: total)
        found = json.loads(run("--json", "-c", str(N_CTX)).stdout)["pairs"]
        assert [(one["room"], one["memory_bytes"]) for one in found] == ([(room, needed)] if room else [])
        told = " ".join(run("-c", str(N_CTX)).stdout.split())
        assert ("no more than is free now" in told) is (room == "fits")
        assert ("less a tenth, which the system and other programs keep" in told) is (
            room == "fits when memory is freed"
        )


def test_each_pair_says_what_its_speed_was_taken_from(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("total_memory", "free_memory"):
        monkeypatch.setattr(f"localspec.system.ram.{name}", lambda: 10**11)
    know([pair for pair in CATALOGUE if pair.name in ("qwen3-4b", "qwen2.5-coder-1.5b")], monkeypatch)
    bases = {"qwen3-4b": "another model", "qwen2.5-coder-1.5b": "this model"}
    one = "this model"

    def of(_self: Speeds, model: Metadata) -> Speed:
        return Speed(10.0, bases["qwen3-4b"] if model.path.name.startswith("Qwen3") else one)

    monkeypatch.setattr("localspec.measure.speed.Speeds.of", of)
    told = run().stdout
    rows = {line.split()[0]: line for line in told.splitlines() if "about 10" in line}
    assert "about 10 (a)" in rows["qwen3-4b"] and "about 10 (b)" in rows["qwen2.5-coder-1.5b"]
    assert "((a) what another model took here, by bytes read; (b) this model was measured here)" in " ".join(
        told.split()
    )
    one = "another model"
    assert "(a)" not in run().stdout


def test_the_built_in_catalogue_can_be_suggested_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    for pair in catalogue.pairs():
        if pair.draft is not None:
            result = json.loads(run(pair.name, "--offline", "--json").stdout)
            assert pair.draft.file in [one["draft"] for one in result["drafts"]]
            assert result["run"] == f"localspec chat {pair.name}"
