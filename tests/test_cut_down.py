"""A model without some of its layers as its own draft: what is copied, kept, shown, removed and refused."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner, Result

from localspec import LLM
from localspec.cli import main
from localspec.engine import cut_down as making
from localspec.engine.cut_down import cut_down, forget_cut_down
from localspec.errors import DiskFull, InvalidRequest, ModelFileError, ModelLoadError
from localspec.gguf.layers import bytes_with, layers_named, layers_written
from localspec.gguf.metadata import read_metadata
from localspec.llama.quantize import requantize
from localspec.pairs import catalogue
from localspec.pairs.pair import Pair
from localspec.store.prepared import CUT_DOWN, PreparedDrafts
from localspec.store.pruning import left_overs
from localspec.store.store import Store
from tests import tinyarch
from tests.hubkit import model_file
from tests.tinyarch import header_only
from tests.tinygguf import write_llama

N_LAYER = 4


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("LOCALSPEC_HOME", str(home))
    monkeypatch.setattr(making, "default_home", lambda: home)
    return home


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model.gguf", seed=1, n_layer=N_LAYER)


def tensors(path: Path) -> dict[str, tuple[str, bytes]]:
    """Format and bytes of each tensor."""
    return {
        one.name: (one.tensor_type.name, np.asarray(one.data).tobytes())
        for one in gguf.GGUFReader(path).tensors
    }


def of_layer(found: Mapping[str, object], layer: int) -> dict[str, object]:
    """What a layer has, by the name without its number."""
    start = f"blk.{layer}."
    return {name.removeprefix(start): one for name, one in found.items() if name.startswith(start)}


# Which layers


@pytest.mark.parametrize(
    ("text", "layers", "written"),
    [
        ("0-3", (0, 1, 2, 3), "0-3"),
        ("5", (5,), "5"),
        ("0-1, 4,3", (0, 1, 3, 4), "0-1,3-4"),
        ("2,0-2", (0, 1, 2), "0-2"),
        ("00", (0,), "0"),
    ],
)
def test_layers_are_named_by_ranges(text: str, layers: tuple[int, ...], written: str) -> None:
    assert layers_named(text) == layers
    assert layers_written(layers) == written


@pytest.mark.parametrize(
    "text", ["", " ", "-", "0-", "-3", "3-1", "0,,1", "a", "0-11-12", "1.5", "0-99999", "٣"]
)
def test_what_names_no_layers(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        layers_named(text)
    assert caught.value.message == f"layers is {text!r}."
    assert "0-11" in caught.value.remedy


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("0-4", "layers is '0-4', and model.gguf has 4 layers."),
        ("9", "layers is '9', and model.gguf has 4 layers."),
        ("0-3", "layers is '0-3': these are all layers of model.gguf."),
    ],
)
def test_layers_that_the_model_cannot_be_cut_down_to(
    home: Path, model: Path, layers: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cut_down(model, layers, home)
    assert caught.value.message == message
    assert not home.exists()


# The copy


@pytest.mark.parametrize("kept", [(0, 1), (0, 3), (2,), (1, 2, 3)])
@pytest.mark.parametrize("form", ["", "q4_0", "bf16"])
def test_the_layers_that_stay_are_those_of_the_model(
    home: Path, model: Path, tmp_path: Path, kept: tuple[int, ...], form: str
) -> None:
    if form:
        requantize(model, tmp_path / "other.gguf", form)
        model = tmp_path / "other.gguf"
    whole, copied = tensors(model), tensors(cut_down(model, layers_written(kept), home))
    assert {name for name in copied if not name.startswith("blk.")} == {
        name for name in whole if not name.startswith("blk.")
    }
    assert all(copied[name] == whole[name] for name in copied if not name.startswith("blk."))
    for place, layer in enumerate(kept):
        assert of_layer(copied, place) == of_layer(whole, layer)
    assert of_layer(copied, len(kept)) == {}


def test_all_else_that_the_file_says_stays(home: Path, model: Path) -> None:
    whole, copied = read_metadata(model), read_metadata(cut_down(model, "0-1", home))
    assert (copied.n_layer, copied.tokens, copied.eog_ids) == (2, whole.tokens, whole.eog_ids)
    assert copied.chat_template == whole.chat_template
    differing = {key for key, value in whole.key_values.items() if copied.key_values.get(key) != value}
    assert differing <= {"llama.block_count", "general.file_type"}


def test_it_drafts_for_the_model_and_changes_nothing(home: Path, model: Path) -> None:
    copy = cut_down(model, "0-1", home)
    options = {"n_ctx": 256, "threads": 1, "home": home, "prepare_draft": False}
    with LLM.from_files(model, no_draft=True, **options) as llm:
        expected = llm.generate("the other end", max_tokens=40, temperature=0)
    with LLM.from_files(model, copy, draft_tokens=3, **options) as llm:
        found = llm.generate("the other end", max_tokens=40, temperature=0)
    assert found.ids == expected.ids
    assert found.stats.drafted > 0


def test_a_split_model_becomes_one_file(home: Path, tmp_path: Path) -> None:
    whole = write_llama(tmp_path / "whole.gguf", seed=1, n_layer=N_LAYER)
    first = write_llama(tmp_path / "parts.gguf", seed=1, n_layer=N_LAYER, per_part=9)
    assert tensors(cut_down(first, "0,2", home)) == tensors(cut_down(whole, "0,2", home))


def test_it_is_made_once(home: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    copy = cut_down(model, "0-1", home, said.append)
    monkeypatch.setattr("localspec.llama.quantize.keep_layers", None)
    assert cut_down(model, "0,1", home, said.append) == copy
    assert said == ["Copying 2 of the 4 layers of model.gguf."]


def test_another_file_of_that_name_gets_another_copy(home: Path, model: Path) -> None:
    copy = cut_down(model, "0-1", home)
    write_llama(model, seed=2, n_layer=N_LAYER)
    other = cut_down(model, "0-1", home)
    assert other != copy
    assert not copy.exists()  # of bytes that are gone


def test_what_is_needed_is_known_before(home: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil._ntuple_diskusage(10**12, 10**12, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: full)
    with pytest.raises(DiskFull) as caught:
        cut_down(model, "0-1", home)
    assert caught.value.needed == bytes_with(model, (0, 1)) + making.RESERVE
    assert list((home / CUT_DOWN).rglob("*.gguf*")) == []
    layers = [bytes_with(model, range(count)) for count in range(N_LAYER + 1)]
    assert len({more - less for less, more in itertools.pairwise(layers)}) == 1


def test_one_that_failed_leaves_nothing(home: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_source: Path, destination: Path, _layers: object) -> None:
        destination.write_bytes(b"half")
        raise ModelLoadError("llama.cpp could not.", "Check it.")

    monkeypatch.setattr("localspec.llama.quantize.keep_layers", fail)
    with pytest.raises(ModelLoadError):
        cut_down(model, "0-1", home)
    assert PreparedDrafts(home, CUT_DOWN).records() == []
    monkeypatch.undo()
    assert read_metadata(cut_down(model, "0-1", home)).n_layer == 2


# Models of several kinds of layers


def refusal(tmp_path: Path, architecture: str, layers: str, **changes: object) -> str:
    made = header_only(architecture)
    values = {f"{architecture}.{key}": value for key, value in changes.items()}
    path = made.write(tmp_path / "model.gguf", values)
    with pytest.raises(ModelFileError) as caught:
        cut_down(path, layers, tmp_path / "home")
    assert "localspec suggest" in caught.value.command
    return caught.value.message.removeprefix(f"{path} cannot lose layers: ")


def test_what_cannot_lose_layers_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    of_each = "it states attention.head_count for each layer by itself."
    assert refusal(tmp_path, "lfm2", "0") == of_each
    assert refusal(tmp_path, "granitehybrid", "0") == of_each
    interval = "only one of 2 layers has attention, and one such must stay."
    assert refusal(tmp_path, "qwen35", "0") == interval
    ordered = "its layers (qwen35) are of several kinds, by their place; only the last ones can go."
    assert refusal(tmp_path, "qwen35", "1-2", block_count=4) == ordered
    unknown = "what its layers (gemma3n) have of each other is not known."
    assert refusal(tmp_path, "gemma3n", "0-3") == unknown
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("architecture", "layers", "is_hybrid"),
    [("qwen35", "0-1", True), ("falcon-h1", "1", True), ("mamba2", "1", False)],
)
def test_models_with_a_running_state_go_on_computing(
    home: Path,
    tmp_path: Path,
    architecture: str,
    layers: str,
    is_hybrid: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tinyarch, "N_LAYER", N_LAYER)
    whole = tinyarch.tiny(architecture, tmp_path).write(tmp_path / "model.gguf")
    copy = cut_down(whole, layers, home)
    assert of_layer(tensors(copy), 0) == of_layer(tensors(whole), layers_named(layers)[0])
    assert read_metadata(copy).is_hybrid is is_hybrid
    with LLM.from_files(copy, n_ctx=64, threads=1, home=home) as llm:
        assert len(llm.generate([1, 2, 3], max_tokens=4, temperature=0, ignore_eos=True).ids) == 4


def test_layers_that_only_draft_go(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinyarch, "N_LAYER", N_LAYER)
    made = tinyarch.tiny("qwen35", tmp_path)
    made.tensors |= {"blk.4.nextn.eh_proj.weight": (32, 2), "blk.4.nextn.enorm.weight": (32,)}
    made.data += bytes(3 * 128)
    changes = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    model = made.write(tmp_path / "model.gguf", changes)
    with pytest.raises(InvalidRequest, match="these are all layers"):
        cut_down(model, "0-3", home)
    copy = cut_down(model, "0-1", home)
    assert read_metadata(copy).key_values["qwen35.nextn_predict_layers"] == 0
    assert [name for name in tensors(copy) if "nextn" in name] == []
    with LLM.from_files(copy, n_ctx=64, threads=1, home=home) as llm:
        assert len(llm.generate([1, 2, 3], max_tokens=4, temperature=0, ignore_eos=True).ids) == 4


# The command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["draft", *arguments])


@pytest.fixture
def pair(home: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The target of the pair `tiny`, which has no draft, as it lies in the store."""
    body = model.read_bytes()
    file = model_file("target.gguf", body)
    tiny = Pair("tiny", "A tiny model", "MIT", 64, ("test",), file, None)
    monkeypatch.setattr(catalogue, "pair", lambda name: tiny)
    monkeypatch.setattr("localspec.store.known.known_pairs", lambda store: [tiny])
    monkeypatch.setattr("localspec.store.pruning.known_pairs", lambda store: [tiny])
    path = home / "files" / file.sha256 / file.file
    path.parent.mkdir(parents=True)
    path.write_bytes(body)
    return path


def test_a_copy_is_made_shown_and_removed(pair: Path, home: Path) -> None:
    made = run("make", "tiny", "--layers", "0-1")
    (copy,) = (home / CUT_DOWN).rglob("*.gguf")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.startswith("2 of 4 layers of target.gguf, ")
    assert f"  {copy}\n" in made.stdout
    assert shlex.split(made.stdout.splitlines()[-1])[-4:] == ["-m", str(pair), "-md", str(copy)]
    assert copy.name == "target.layers-0-1.gguf"
    run("make", "tiny", "--layers", "0,3", "-q")
    shown = run("show", "tiny").stdout.splitlines()
    assert shown[0] == str(pair)
    assert [line.partition(": ")[0] for line in shown[1:]] == ["  layers 0-1", "  layers 0,3"]
    assert run().stdout.splitlines() == shown
    assert run("rm", "tiny", "--layers", "0-1").stdout.startswith(
        "Removed what was prepared from target.gguf"
    )
    assert not copy.exists()
    assert len(run("show").stdout.splitlines()) == 2
    assert run("rm", "tiny").stdout.startswith("Removed what was prepared from target.gguf")
    assert run().stdout == "No draft has been prepared.\n"
    assert run("rm", "tiny", "--layers", "0-1").stdout == "Nothing prepared from target.gguf was here.\n"
    assert pair.is_file()


def test_json_for_programs(pair: Path) -> None:
    made = json.loads(run("make", "tiny", "--layers", "0-1", "--json", "-q").stdout)
    assert (made["target"], made["layers"], made["of"]) == (str(pair), 2, 4)
    assert Path(made["path"]).stat().st_size == made["bytes"]
    (entry,) = json.loads(run("show", "--json").stdout)
    copy = {"layers": "0-1", "path": made["path"], "bytes": made["bytes"]}
    assert entry == {"target": str(pair), "bytes": pair.stat().st_size, "copies": [copy]}
    freed = json.loads(run("rm", "tiny", "--json").stdout)["freed"]
    assert freed == made["bytes"]


def test_a_file_of_ones_own(home: Path, model: Path) -> None:
    for place in ((str(model),), ("-md", str(model))):
        assert run("make", *place, "--layers", "0-1", "-q").exit_code == 0
        assert run("show", *place).stdout.startswith(str(model))
        assert run("rm", *place).stdout.startswith("Removed")


def test_it_goes_with_its_model(pair: Path, home: Path) -> None:
    run("make", "tiny", "--layers", "0-1", "-q")
    pair.unlink()
    pair.parent.rmdir()
    (item,) = [one for one in left_overs(Store(home)) if one.path.parent.name == CUT_DOWN]
    assert item.reason == "a cut-down copy whose model is gone"


def test_removing_a_pair_removes_what_was_cut_from_it(pair: Path, home: Path) -> None:
    run("make", "tiny", "--layers", "0-1", "-q")
    size = sum(file.stat().st_size for file in (pair, *(home / CUT_DOWN).rglob("*.gguf")))
    assert Store(home).remove(catalogue.pair("tiny")) == size
    assert list((home / CUT_DOWN).rglob("*.gguf")) == []


def test_wrong_usage(pair: Path) -> None:
    for arguments, complaint in {
        ("show", "tiny", "--layers", "0"): "--layers goes with make and rm",
        ("make", "tiny", "--layers", "0-9"): "--layers is '0-9', and target.gguf has 4 layers.",
        ("make", "tiny", "--layers", "x"): "--layers is 'x'.",
        ("rm", "tiny", "--layers", "x"): "--layers is 'x'.",
    }.items():
        result = run(*arguments)
        assert (result.exit_code, complaint in result.stderr) == (2, True), result.stderr


def test_forgetting_what_was_never_made(home: Path, model: Path) -> None:
    assert forget_cut_down(model, home=home) == 0
    assert forget_cut_down(model, "0-1", home) == 0
