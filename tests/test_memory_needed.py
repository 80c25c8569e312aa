"""How much memory models will take that are not on this disk: from the catalogue, or from a hub's headers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import memory_needed
from localspec.errors import InvalidRequest, NotDownloaded, OfflineError, SourceUnreachable
from localspec.gguf.metadata import read_metadata
from localspec.gguf.running_state import state_bytes
from localspec.pairs.catalogue import pairs
from localspec.pairs.pair import LocalSource, ModelFile
from localspec.pairs.shape import Shape
from localspec.store.own import keep_pair
from localspec.store.store import Store
from tests.hubkit import hub_of, make_pair, model_file, sandbox
from tests.hubserver import Hub
from tests.tinygguf import write_llama

N_CTX = 128


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Path, Path]:
    """A target and its draft."""
    target = write_llama(tmp_path / "target-Q8_0.gguf", n_layer=3)
    return target, write_llama(tmp_path / "draft-Q4_0.gguf", n_layer=1)


@pytest.fixture
def hub(tiny: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    sandbox(monkeypatch, tmp_path)
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "store"))
    with hub_of({path.name: path.read_bytes() for path in tiny}, monkeypatch) as server:
        yield server


def shape_of(path: Path) -> Shape:
    """What a pair file would say of it."""
    metadata = read_metadata(path)
    start = f"{metadata.architecture}."
    wanted = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count",
              "attention.head_count_kv")  # fmt: skip
    keys = {key: metadata.key_values[start + key] for key in wanted if start + key in metadata.key_values}
    return Shape(metadata.architecture, metadata.n_vocab, keys)  # type: ignore[arg-type]


def described(path: Path, *, shape: bool) -> ModelFile:
    file = model_file(path.name, path.read_bytes())
    return replace(file, shape=shape_of(path)) if shape else file


OUTLINED = [pair for pair in pairs() if all(file.shape for file in pair.files)]


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("pair", OUTLINED, ids=lambda pair: pair.name)
def test_every_pair_of_the_catalogue_is_known_before_it_is_here(pair) -> None:
    """Weights are the files'; the cache is that of the shape: two bytes for each number of each layer's K and V."""
    needed = memory_needed(pair.name, n_ctx=2048)
    assert needed.weights == pair.bytes
    cache = 0
    for file in pair.files:
        keys = file.shape.keys
        head = keys.get("attention.key_length", keys["embedding_length"] // keys["attention.head_count"])
        each = keys["attention.head_count_kv"]
        layers = keys["block_count"] - keys.get("nextn_predict_layers", 0)
        if "full_attention_interval" in keys:
            layers = layers // keys["full_attention_interval"] + keys.get("nextn_predict_layers", 0)
        cache += (sum(each) if isinstance(each, tuple) else layers * each) * head * 2 * 2 * 2048
    states = sum(state_bytes(file.outline) for file in pair.files)
    assert (states > 0) == any(file.outline.is_hybrid for file in pair.files)
    if states:  # those of the target with snapshots, for which there is room
        assert cache + states <= needed.kv_cache <= cache + 17 * states
    else:
        assert needed.kv_cache == cache
    assert needed.compute > 0


@pytest.mark.usefixtures("no_network")
def test_it_is_the_same_as_from_the_files(
    tiny: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(*(described(path, shape=True) for path in tiny))
    for where in ("localspec.hub.sources", "localspec.hub.named_models"):
        monkeypatch.setattr(f"{where}.pair", lambda *_: pair)
    options = {"n_ctx": N_CTX, "cache_type_v": "q8_0"}
    files = memory_needed(*tiny, **options)
    before = memory_needed("small", **options)
    assert (before.weights, before.kv_cache, before.compute) == (files.weights, files.kv_cache, files.compute)
    file = pair.files[0]
    place = Store().home / "files" / file.sha256 / file.file
    place.parent.mkdir(parents=True)
    place.write_bytes(tiny[0].read_bytes())
    half = memory_needed("small", **options)
    assert (half.weights, half.kv_cache, half.compute) == (files.weights, files.kv_cache, files.compute)


def test_a_hubs_model_is_asked_of_its_hub(hub: Hub, tiny: tuple[Path, Path]) -> None:
    name = "someone/some-GGUF:{}"
    names = [name.format(choice) for choice in ("Q8_0", "Q4_0")]
    files, needed = memory_needed(*tiny, n_ctx=N_CTX), memory_needed(*names, n_ctx=N_CTX)
    assert (needed.weights, needed.kv_cache, needed.compute) == (
        files.weights,
        files.kv_cache,
        files.compute,
    )
    asked = len(hub.requests)
    with pytest.raises(OfflineError, match="has not been pulled"):
        memory_needed(names[0], n_ctx=N_CTX, offline=True)
    with pytest.raises(InvalidRequest, match="n_ctx"):
        memory_needed(names[0], n_ctx=0)
    assert len(hub.requests) == asked


def test_a_pair_without_shapes_is_asked_of_its_hub(
    hub: Hub, tiny: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(*(described(path, shape=False) for path in tiny))
    for where in ("localspec.hub.sources", "localspec.hub.named_models"):
        monkeypatch.setattr(f"{where}.pair", lambda *_: pair)
    assert memory_needed("small", n_ctx=N_CTX).weights == pair.bytes
    with pytest.raises(NotDownloaded):
        memory_needed("small", n_ctx=N_CTX, offline=True)
    hub.fault = "error-503"
    with pytest.raises(SourceUnreachable):
        memory_needed("small", n_ctx=N_CTX)


@pytest.mark.usefixtures("no_network")
def test_the_home_that_was_given_counts(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """A pair of the user's own, in another folder, whose draft is to be fetched."""
    home = tmp_path / "elsewhere"
    target = described(tiny[0], shape=False)
    here = replace(target, sources=(LocalSource(str(tiny[0])),))
    keep_pair(make_pair(here, described(tiny[1], shape=False), "mine"), Store(home))
    with pytest.raises(NotDownloaded, match=r"draft-Q4_0\.gguf missing"):
        memory_needed("mine", home=home, offline=True)


@pytest.mark.real
def test_the_catalogue_says_of_the_default_pair_what_its_files_say(
    real_paths: tuple[Path, Path], smollm_path: Path
) -> None:
    known = {file.file: file for pair in pairs() for file in pair.files}
    for path in (*real_paths, smollm_path):
        shape = known[path.name].shape
        assert shape is not None
        assert shape.differences(read_metadata(path)) == []


def test_a_shape_says_where_a_file_differs(tiny: tuple[Path, Path]) -> None:
    shape = shape_of(tiny[0])
    assert shape.differences(read_metadata(tiny[0])) == []
    assert shape.differences(read_metadata(tiny[1])) == ["block_count is 1, not 3"]
