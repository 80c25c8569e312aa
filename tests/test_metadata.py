"""Reading GGUF metadata, and keeping bad files out of the C library."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

from localspec import LLM
from localspec.cli import main as command
from localspec.errors import ModelFileError
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.gguf.reader import read_header
from tests import tinygguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tinygguf.write_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def refusal(tmp_path: Path):  # type: ignore[no-untyped-def]
    """What read_metadata says to a file of the given bytes."""

    def refuse(content: bytes) -> str:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return refused(path)

    return refuse


def refused(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_metadata(path)
    assert caught.value.path == path
    assert str(path) in caught.value.message
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- a small writer, for files that the gguf package would refuse to write

CODES = {"u8": (0, "<B"), "u32": (4, "<I"), "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q")}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def scalar(key: str, kind: str, value: object) -> bytes:
    code, form = CODES[kind]
    return text(key) + struct.pack("<I", code) + struct.pack(form, value)


def string(key: str, value: str | bytes) -> bytes:
    return text(key) + struct.pack("<I", 8) + text(value)


def strings(key: str, values: list[bytes]) -> bytes:
    return text(key) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))


def tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


BASE = {
    "arch": string("general.architecture", "llama"),
    "ctx": scalar("llama.context_length", "u32", 128),
    "layers": scalar("llama.block_count", "u32", 1),
    "embd": scalar("llama.embedding_length", "u32", 8),
    "model": string("tokenizer.ggml.model", "gpt2"),
    "tokens": strings("tokenizer.ggml.tokens", [b"a", b"b"]),
}
TENSOR = tensor("token_embd.weight", [8, 2])
DATA = bytes(64)


def build(
    *more: bytes,
    without: str = "",
    tensors: tuple[bytes, ...] = (TENSOR,),
    data: bytes = DATA,
    version: int = 3,
    **changed: bytes,
) -> bytes:
    values = [*(BASE | changed).values(), *more]
    if without:
        values.remove(BASE[without])
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(values)) + b"".join(values)
    head += b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


# -- good files


def test_facts_of_a_llama(tiny: Path) -> None:
    metadata = read_metadata(tiny)
    assert metadata.path == tiny
    assert metadata.size_bytes == tiny.stat().st_size
    assert (metadata.architecture, metadata.name, metadata.file_type) == ("llama", "tiny", "F32")
    assert (metadata.n_vocab, metadata.n_ctx_train, metadata.n_layer, metadata.n_embd) == (300, 512, 2, 64)
    assert (metadata.n_swa, metadata.is_recurrent, metadata.is_hybrid) == (0, False, False)
    assert (metadata.tokenizer_model, metadata.tokenizer_pre) == ("gpt2", "gpt-2")
    assert metadata.tokens[65] == b"A"
    assert metadata.tokens[metadata.eos_id or 0] == b"<|im_end|>"
    assert metadata.tokens[metadata.bos_id or 0] == b"<|bos|>"
    assert (metadata.add_bos, metadata.add_eos) == (False, False)
    assert metadata.chat_template == tinygguf.CHATML
    assert metadata.key_values["llama.attention.head_count"] == 4
    assert metadata.special_texts == set(tinygguf.CONTROL)


def test_sliding_window_and_recurrent(tmp_path: Path) -> None:
    assert read_metadata(tinygguf.write_gemma(tmp_path / "g.gguf", n_swa=16)).n_swa == 16
    assert read_metadata(tinygguf.write_mamba(tmp_path / "m.gguf")).is_recurrent
    assert read_metadata(tinygguf.write_llama(tmp_path / "l.gguf", template=None)).chat_template is None


@pytest.mark.parametrize("place", [0, 1])
def test_a_model_that_reads_ahead_is_neither_target_nor_draft(tmp_path: Path, place: int) -> None:
    """What it makes of a token depends on those after it, so a drafted text would change what was there before."""
    pair = list(tinygguf.write_pair(tmp_path))
    pair[place] = tinygguf.write_llama(tmp_path / "ahead.gguf", extra={"llama.attention.causal": False})
    said = r"ahead\.gguf is a model that reads ahead of each token.*llama\.attention\.causal is false"
    with pytest.raises(ModelFileError, match=said):
        LLM.from_files(*pair, n_ctx=64, threads=1, home=tmp_path / "home")
    result = CliRunner().invoke(command, ["check", *map(str, pair)])
    assert result.exit_code == 1 and "reads ahead of each token" in result.output
    causal = tinygguf.write_llama(tmp_path / "causal.gguf", extra={"llama.attention.causal": True})
    assert read_metadata(causal).n_layer == 2


def test_a_table_of_experts_is_no_weight(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(build(tensors=(tensor("blk.0.ffn_gate_tid2eid.weight", [8, 2], kind=26),)))
    assert read_metadata(path).n_vocab == 2


def test_non_ascii_path(tmp_path: Path, tiny: Path) -> None:
    path = tmp_path / "modèle 模型.gguf"
    path.write_bytes(tiny.read_bytes())
    assert read_metadata(path).path == path


def test_the_handmade_base_is_good(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(build())
    metadata = read_metadata(path)
    assert metadata.tokens == (b"a", b"b")
    assert metadata.name == "model"
    path.write_bytes(build(version=2))
    assert read_metadata(path).n_ctx_train == 128


@pytest.mark.parametrize(
    ("model", "pre", "given", "expected"),
    [
        ("gpt2", "gpt-2", {}, (None, None, False)),  # the default id 11 lies outside two tokens
        ("gpt2", "gpt-2", {"bos": 1, "eos": 0}, (1, 0, False)),
        ("gpt2", "llama-bpe", {"bos": 0}, (0, None, True)),
        ("gpt2", "gpt-2", {"bos": 7}, (None, None, False)),
        ("gemma4", "", {"bos": 1}, (1, None, True)),
    ],
)
def test_bos_and_eos_defaults(
    tmp_path: Path, model: str, pre: str, given: dict[str, int], expected: tuple[int | None, int | None, bool]
) -> None:
    ids = [scalar(f"tokenizer.ggml.{name}_token_id", "u32", token) for name, token in given.items()]
    path = tmp_path / "model.gguf"
    ids.append(string("tokenizer.ggml.pre", pre))
    path.write_bytes(build(*ids, model=string("tokenizer.ggml.model", model)))
    metadata = read_metadata(path)
    assert (metadata.bos_id, metadata.eos_id, metadata.add_bos) == expected


def test_tokens_are_those_that_llama_cpp_reads(tmp_path: Path) -> None:
    """C strings: what stands behind a NUL is not there, and an empty one gets a name."""
    path = tmp_path / "model.gguf"
    types = text("tokenizer.ggml.token_type") + struct.pack("<IIQ5i", 9, 5, 5, 1, 1, 1, 3, 3)
    tokens = strings("tokenizer.ggml.tokens", [b"", b"\0x", b"a\0b", b"<|x|>\0", b"\0<|y|>"])
    path.write_bytes(build(types, tokens=tokens))
    metadata = read_metadata(path)
    assert metadata.tokens == (b"[EMPTY_0]", b"[EMPTY_1]", b"a", b"<|x|>", b"[EMPTY_4]")
    assert metadata.special_texts == {"<|x|>", "[EMPTY_4]"}


def test_sentencepiece_defaults(tmp_path: Path) -> None:
    tokens = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256))]
    path = tmp_path / "model.gguf"
    parts = {
        "model": string("tokenizer.ggml.model", "llama"),
        "tokens": strings("tokenizer.ggml.tokens", tokens),
    }
    path.write_bytes(build(**parts))
    metadata = read_metadata(path)
    assert (metadata.bos_id, metadata.eos_id, metadata.add_bos) == (1, 2, True)


# -- bad files


def test_missing_directory_and_special_files(tmp_path: Path) -> None:
    assert "There is no file" in refused(tmp_path / "nothing.gguf")
    assert "is a directory" in refused(tmp_path)
    assert "cannot be read" in refused(tmp_path / "a\0b.gguf")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html><body>Sign in</body>", "web page"),
        (b"\n\n <HTML>", "web page"),
        (b"PK\x03\x04" + bytes(40), "zip archive"),
        (struct.pack("<Q", 900) + b'{"__metadata__":{}}', "safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"lmgg" + bytes(20), "old GGML"),
        (b"\x1f\x8b\x08" + bytes(20), "gzip"),
        (bytes(4096), "unfinished download"),
        (b'{"error": "not found"}', "JSON"),
        (b"Invalid username or password.", "text file"),
        (b"GG", "text file"),
        (b"\xde\xad\xbe\xef" * 5, "de ad be ef"),
    ],
)
def test_other_kinds_of_file(refusal, content: bytes, what: str) -> None:  # type: ignore[no-untyped-def]
    assert what in refusal(content)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (build(version=1), "version 1"),
        (build(version=4), "version 4"),
        (build(version=0), "version 0"),
        (build(version=0x03000000), "big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1, 1 << 60), "key-values"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 0), "tensors"),
        (b"GGUF", "cut off in the header"),
        (build(without="arch"), "no architecture"),
        (build(without="model"), "no tokenizer"),
        (build(model=string("tokenizer.ggml.model", "none")), "no tokenizer"),
        (build(without="tokens"), "no vocabulary"),
        (build(without="ctx"), "llama.context_length"),
        (build(tensors=()), "vocabulary without weights"),
        (build(arch=string("general.architecture", "clip")), "mmproj"),
        (build(string("general.type", "mmproj")), "mmproj"),
        (build(string("general.type", "adapter")), "adapter"),
        (build(arch=string("general.architecture", "bert")), "embedding model"),
        (build(arch=string("general.architecture", "dflash")), "drafting head"),
        (build(scalar("split.count", "u32", 3), scalar("split.no", "u32", 1)), "part 2 of 3"),
        (build(BASE["arch"]), "occurs twice"),
        (build(string("", "x")), "empty"),
        (build(text("a") + struct.pack("<I", 77)), "unknown value type 77"),
        (build(text("a") + struct.pack("<IIQ", 9, 9, 1)), "nested array"),
        (build(text("a") + struct.pack("<IIQ", 9, 55, 1)), "unknown type 55"),
        (build(text("a") + struct.pack("<IIQ", 9, 4, 1 << 50)), "cut off in the key-values"),
        (build(text("a") + struct.pack("<IIQ", 9, 8, 1 << 50)), "strings"),
        (build(struct.pack("<Q", 1 << 62) + b"key"), "length of"),
        (build(text("a") + struct.pack("<IQ", 8, 1 << 23)), "cut off in the key-values"),
        (build(tokens=strings("tokenizer.ggml.tokens", [b"a", b"x", b"x"])), "token 'x' twice"),
        # llama.cpp reads C strings, and names an empty one [EMPTY_id].
        (build(tokens=strings("tokenizer.ggml.tokens", [b"[", b"[\0x"])), "token '[' twice"),
        (build(tokens=strings("tokenizer.ggml.tokens", [b"x\0y", b"x\0z"])), "token 'x' twice"),
        (build(tokens=strings("tokenizer.ggml.tokens", [b"", b"[EMPTY_0]"])), "token '[EMPTY_0]' twice"),
        (build(tokens=strings("tokenizer.ggml.tokens", [b"[EMPTY_1]", b"\0x"])), "token '[EMPTY_1]' twice"),
        (build(tokens=strings("tokenizer.ggml.tokens", [b"a", b"x" * 70000])), "70000 bytes"),
        (build(model=string("tokenizer.ggml.model", "llama")), "no token for the byte 0x00"),
        (build(model=string("tokenizer.ggml.model", "llama\0x")), "no token for the byte 0x00"),
        (build(scalar("llama.block_count\0", "u32", 513)), "'llama.block_count\\x00' holds a NUL"),
        (build(tensors=(tensor("w\0", [8, 2]),)), "'w\\x00' holds a NUL"),
        (build(scalar("tokenizer.ggml.add_bos_token", "bool", True)), "adds BOS tokens"),
        (build(text("tokenizer.ggml.token_type") + struct.pack("<IIQI", 9, 5, 1, 1)), "types for 1"),
        (build(scalar("general.alignment", "u32", 24)), "power of two"),
        (build(scalar("general.alignment", "u64", 32)), "32-bit"),
        (build(layers=scalar("llama.block_count", "u32", 0)), "block_count is 0"),
        (build(layers=scalar("llama.block_count", "u32", 513)), "block_count is 513"),
        (build(layers=string("llama.block_count", "many")), "not a whole number"),
        (
            build(scalar("llama.expert_count", "u32", 4), scalar("llama.expert_used_count", "u32", 5)),
            "expert_used",
        ),
        (build(scalar("llama.attention.head_count_kv", "u32", 0x20000002)), "head_count_kv is 536870914"),
        (build(scalar("llama.attention.layer_norm_rms_epsilon", "f32", -1.0)), "epsilon is -1.0"),
        (build(string("llama.rope.scaling.type", "odd")), "'odd'"),
        (build(tensors=(TENSOR, TENSOR)), "occurs twice"),
        (build(tensors=(tensor("w", [8, 2], kind=99),)), "unknown type 99"),
        (build(tensors=(tensor("w", [8, 2], kind=12),)), "not a multiple of 256"),
        # Over these the C library ends the process when it computes, with an assertion or a null pointer.
        (build(tensors=(tensor("w", [8, 2], kind=28),)), "the type F64, which no weights have"),
        (build(tensors=(tensor("w", [256, 2], kind=15),)), "the type Q8_K, which no weights have"),
        (build(tensors=(tensor("w", [8, 2], kind=26),)), "the type I32, which no weights have"),
        (build(tensors=(tensor("v", [32, 1], kind=8),)), "computes it in F32 only"),
        (build(tensors=(tensor("blk.0.attn_q_norm.weight", [8, 2], kind=1),)), "computes it in F32 only"),
        (build(tensors=(tensor("blk.0.ssm_a", [8, 2], kind=30),)), "computes it in F32 only"),
        (build(tensors=(tensor("w", [1] * 5),)), "5 dimensions"),
        (build(tensors=(tensor("w", [1 << 40, 1 << 40]),)), "absurd shape"),
        (build(tensors=(tensor("w" * 64, [8, 2]),)), "length of 64"),
        (build(tensors=(tensor("w", [8, 2], offset=32),)), "offset 32"),
        (build(tensors=(tensor("w", [8, 3]),)), "cut off 32 bytes before the end of tensor 'w'"),
        (build(data=b""), "cut off 64 bytes before the end"),
    ],
)
def test_malformed(refusal, content: bytes, what: str) -> None:  # type: ignore[no-untyped-def]
    assert what in refusal(content)


def test_every_truncation_is_noticed(tmp_path: Path, tiny: Path) -> None:
    whole = tiny.read_bytes()
    data_offset = read_header(tiny, keep=frozenset()).data_offset
    path = tmp_path / "cut.gguf"
    cuts = random.Random(1).sample(range(24, data_offset), 150)
    for cut in [*cuts, data_offset, data_offset + 1, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        assert "cut off" in refused(path) or "more than" in refused(path)


def mutated(whole: bytes, data_offset: int, rng: random.Random) -> bytes:
    """One fault somewhere in the header: a flipped bit, a huge number, bytes lost or doubled."""
    at = rng.randrange(4, data_offset)
    kind = rng.randrange(5)
    if kind == 0:
        return whole[:at] + bytes((whole[at] ^ (1 << rng.randrange(8)),)) + whole[at + 1 :]
    if kind == 1:
        return whole[:at] + struct.pack("<Q", rng.choice((1 << 31, 1 << 40, (1 << 64) - 1))) + whole[at + 8 :]
    if kind == 2:
        return whole[:at] + whole[at + rng.randrange(1, 40) :]
    if kind == 3:
        return whole[:at] + whole[at : at + rng.randrange(1, 40)] + whole[at:]
    return whole[:at] + rng.randbytes(rng.randrange(1, 16)) + whole[at + rng.randrange(1, 16) :]


def test_mutated_headers_read_or_are_refused(tmp_path: Path, tiny: Path) -> None:
    whole = tiny.read_bytes()
    data_offset = read_header(tiny, keep=frozenset()).data_offset
    path = tmp_path / "mutated.gguf"
    rng = random.Random(20)
    outcomes = {"read": 0, "refused": 0}
    tracemalloc.start()
    for _ in range(600):
        path.write_bytes(mutated(whole, data_offset, rng))
        tracemalloc.reset_peak()
        try:
            assert isinstance(read_metadata(path), Metadata)
            outcomes["read"] += 1
        except ModelFileError as error:
            assert str(path) in str(error)
            outcomes["refused"] += 1
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert outcomes["read"] > 50
    assert outcomes["refused"] > 300


def test_the_reader_agrees_with_the_gguf_package(tiny: Path) -> None:
    import gguf

    reference = gguf.GGUFReader(tiny)
    header = read_header(tiny, keep=frozenset({"tokenizer.ggml.tokens"}))
    assert [(row.name, row.shape, row.num_bytes) for row in header.tensors] == [
        (row.name, tuple(row.shape), row.n_bytes) for row in reference.tensors
    ]
    assert header.data_offset == reference.data_offset
    field = reference.fields["tokenizer.ggml.tokens"]
    tokens = tuple(bytes(field.parts[part]) for part in field.data)
    assert header.key_values["tokenizer.ggml.tokens"] == tokens


def test_block_sizes_agree_with_the_gguf_package() -> None:
    import gguf

    from localspec.gguf.types import FILE_TYPES, TENSOR_TYPES

    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        if kind.name == "Q8_1":  # a format of activations: no file has it, and the package has an old size
            continue
        assert TENSOR_TYPES[kind.value] == (kind.name, *sizes)
    for file_type in gguf.LlamaFileType:
        if file_type.name != "GUESSED":
            assert FILE_TYPES[file_type.value] == file_type.name.split("_", 1)[1]
