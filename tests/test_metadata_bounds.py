"""Bounds in a GGUF header, from both sides: the last value that is read and the first that is refused."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from localspec.errors import ModelFileError
from localspec.gguf.metadata import Metadata, read_metadata

from .test_metadata import DATA, build, scalar, string, strings, tensor, text


@pytest.fixture
def read(tmp_path: Path):  # type: ignore[no-untyped-def]
    def read(*more: bytes, **changed: bytes) -> Metadata:
        path = tmp_path / "model.gguf"
        path.write_bytes(build(*more, **changed))
        return read_metadata(path)

    return read


def figures(**values: int | float) -> list[bytes]:
    """Figures of a llama; two underscores stand for a dot."""
    return [
        scalar(f"llama.{name.replace('__', '.')}", "f32" if isinstance(value, float) else "u32", value)
        for name, value in values.items()
    ]


HEADS, EXPERTS = {"attention__head_count": 4}, {"expert_count": 8, "expert_used_count": 2}


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({**HEADS, "attention__head_count_kv": 4}, {**HEADS, "attention__head_count_kv": 5}),
        ({"nextn_predict_layers": 1}, {"nextn_predict_layers": 2}),  # of one layer
        ({"expert_count": 1024, "expert_used_count": 1}, {"expert_count": 1025, "expert_used_count": 1}),
        ({"expert_count": 8, "expert_used_count": 8}, {"expert_count": 8, "expert_used_count": 9}),
        ({"expert_count": 8, "expert_used_count": 1}, {"expert_count": 8, "expert_used_count": 0}),
        (
            {**EXPERTS, "expert_group_count": 4, "expert_group_used_count": 2},
            {**EXPERTS, "expert_group_count": 3, "expert_group_used_count": 2},
        ),
        (
            {**EXPERTS, "expert_group_count": 4, "expert_group_used_count": 3},
            {**EXPERTS, "expert_group_count": 4, "expert_group_used_count": 4},
        ),
        (
            {**EXPERTS, "expert_group_count": 4, "expert_group_used_count": 1},
            {**EXPERTS, "expert_group_count": 4, "expert_group_used_count": 0},
        ),
        ({"attention__layer_norm_rms_epsilon": 0.0}, {"attention__layer_norm_rms_epsilon": math.inf}),
        ({"attention__layer_norm_epsilon": 1e30}, {"attention__layer_norm_epsilon": math.nan}),
    ],
)
def test_figures(read, good, bad) -> None:  # type: ignore[no-untyped-def]
    read(*figures(**good))
    with pytest.raises(ModelFileError, match="not a usable GGUF file"):
        read(*figures(**bad))


@pytest.mark.parametrize(
    ("value", "good"), [(0, False), (1, True), (2, True), (3, False), (32, True), (48, False)]
)
def test_an_alignment_is_a_power_of_two(read, value: int, good: bool) -> None:  # type: ignore[no-untyped-def]
    given = scalar("general.alignment", "u32", value)
    if good:
        read(given)
    else:
        with pytest.raises(ModelFileError, match=f"alignment of {value}"):
            read(given)


def test_the_longest_name_of_a_tensor_and_the_most_dimensions(read) -> None:  # type: ignore[no-untyped-def]
    read(tensors=(tensor("w" * 63, [8, 2]),))
    read(tensors=(tensor("w", [8, 2, 1, 1]),))
    for wrong in (tensor("w" * 64, [8, 2]), tensor("w", [8, 2, 1, 1, 1])):
        with pytest.raises(ModelFileError, match="at most"):
            read(tensors=(wrong,))


@pytest.mark.parametrize("missing", [0, 1, 31, 33, 64])
def test_the_last_byte_of_the_last_tensor_must_be_there(read, missing: int) -> None:  # type: ignore[no-untyped-def]
    if not missing:
        read(data=DATA)
        return
    with pytest.raises(ModelFileError, match=f"cut off {missing} bytes before the end"):
        read(data=DATA[missing:])


def test_what_lies_between_two_tensors_is_padded(read) -> None:  # type: ignore[no-untyped-def]
    """The first takes 40 bytes, so the second begins at 64."""
    first = tensor("a", [10, 1])
    read(tensors=(first, tensor("b", [8, 2], offset=64)), data=bytes(128))
    for offset in (40, 32, 96):
        with pytest.raises(ModelFileError, match=f"lies at offset {offset}, not at 64"):
            read(tensors=(first, tensor("b", [8, 2], offset=offset)), data=bytes(256))


@pytest.mark.parametrize(
    "twice",
    [
        scalar("a", "u32", 1),
        string("a", "x"),
        strings("a", [b"x"]),
        text("a") + struct.pack("<IIQI", 9, 4, 1, 7),
    ],
)
def test_a_key_that_occurs_twice_whatever_its_values(read, twice: bytes) -> None:  # type: ignore[no-untyped-def]
    read(twice)
    with pytest.raises(ModelFileError, match="'a' occurs twice"):
        read(twice, twice)
    with pytest.raises(ModelFileError, match="'a' occurs twice"):
        read(twice, scalar("a", "u32", 1))


@pytest.mark.parametrize(("given", "found"), [(0, 0), (1, 1), (2, None), (300, None)])
def test_a_special_token_lies_in_the_vocabulary(read, given: int, found: int | None) -> None:  # type: ignore[no-untyped-def]
    """Of two tokens. What lies outside counts as absent, as in llama.cpp."""
    metadata = read(
        scalar("tokenizer.ggml.bos_token_id", "u32", given),
        scalar("tokenizer.ggml.eot_token_id", "u32", given),
    )
    assert metadata.bos_id == found
    assert metadata.eog_ids == (frozenset() if found is None else {found})


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        ([b"<|fim_pad|>", b"x"], {0}),
        ([b"x", b"<PAD>", b"<|fim_pad|>"], {1}),  # one id of each kind, the lowest
        ([b"<|repo_name|>", b"<REPO>", b"<|file_sep|>"], {0, 2}),
        ([b"<|end|>", b"<|call|>", b"<|return|>"], {1, 2}),
        ([b"<|end|>", b"<|call|>", b"x"], {0, 1}),
        ([b"</s>", b"<|tool_response>"], {1}),
        ([b"</s>", b"[EOT]"], {0, 1}),
    ],
)
def test_ends_by_name(read, tokens: list[bytes], ends: set[int]) -> None:  # type: ignore[no-untyped-def]
    metadata = read(tokens=strings("tokenizer.ggml.tokens", tokens), tensors=(tensor("w", [8, 2]),))
    assert metadata.eog_ids == ends


def test_types_for_every_token(read) -> None:  # type: ignore[no-untyped-def]
    def types(count: int) -> bytes:
        return text("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{count}i", 9, 5, count, *[1] * count)

    assert read(types(2)).token_types == b"\1\1"
    assert read(types(3)).token_types == b"\1\1"
    with pytest.raises(ModelFileError, match="types for 1 of them"):
        read(types(1))


def test_heads_of_an_odd_size_are_refused_for_what_they_are(read) -> None:  # type: ignore[no-untyped-def]
    heads = figures(attention__head_count=1)
    with pytest.raises(ModelFileError, match=r"keys of 7 numbers .* turns all of a head by pairs"):
        read(*heads, embd=scalar("llama.embedding_length", "u32", 7))
