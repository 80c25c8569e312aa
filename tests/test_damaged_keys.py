"""Key-values that are absent, of another type, zero, huge or lists: refused before llama.cpp, or survived by it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.compute.context_options import ContextOptions
from localspec.engine.memory import kv_cache_bytes
from localspec.errors import LocalspecError, ModelFileError
from localspec.gguf.metadata import read_metadata
from localspec.gguf.running_state import state_bytes

from .tinyarch import TinyFile, header_only, tiny
from .tinygguf import write_llama

HEADS, HEADS_KV = "attention.head_count", "attention.head_count_kv"


def of(architecture: str, folder: Path, **changes: Any) -> Path:
    """A header of that architecture, with keys changed: `__` for a dot, None to leave it out."""
    named = {f"{architecture}.{key.replace('__', '.')}": value for key, value in changes.items()}
    return header_only(architecture, experts=True).write(folder / "changed.gguf", named)


@pytest.mark.parametrize(
    ("architecture", "changes", "what"),
    [
        ("llama", {"expert_used_count": None}, "it has 2 experts, and llama.expert_used_count is missing"),
        ("llama", {"expert_used_count": 0}, "it has 2 experts, and llama.expert_used_count is 0"),
        ("llama", {"expert_used_count": [0, 0]}, "it has 2 experts, and llama.expert_used_count is 0"),
        (
            "llama",
            {"expert_used_count": [2, 0]},
            "llama.expert_used_count is [2, 0], and each layer uses some",
        ),
        (
            "llama",
            {"expert_used_count": [2, 3]},
            "llama.expert_used_count is [2, 3], and 0 to 2 are possible",
        ),
        ("llama", {"expert_used_count": [2]}, "llama.expert_used_count has 1 numbers for 2 layers"),
        ("llama", {"expert_count": 4, "expert_group_count": 2}, "llama.expert_group_used_count is missing"),
        (
            "qwen35",
            {"full_attention_interval": 3},
            "its qwen35.full_attention_interval is 3: of its 2 layers some must have attention",
        ),
        ("qwen35", {"nextn_predict_layers": 1}, "so none of its 1 layers has attention"),
        ("qwen3next", {"full_attention_interval": None}, "is 4: of its 2 layers some must have attention"),
        ("llama", {"attention__head_count_kv": [2, 0]}, "head_count_kv is [2, 0], and all layers"),
        ("llama", {"attention__head_count_kv": [2, 1]}, "head_count_kv is [2, 1], and all layers"),
        ("llama", {"attention__head_count_kv": [2, 2, 2]}, "head_count_kv has 3 numbers for 2 layers"),
        ("llama", {"attention__head_count": [True, True]}, "head_count is True, not a whole number"),
        ("llama", {"attention__head_count": [2, -1]}, "head_count is [2, -1], and 0 to 65536 are possible"),
        (
            "llama",
            {"attention__head_count": 3},
            "layer 0 has 3 heads (attention.head_count), which do not divide",
        ),
        (
            "deci",
            {"attention__head_count_kv": [2, 3]},
            "layer 1 has 2 heads (attention.head_count), which do not",
        ),
        ("openelm", {"attention__head_count_kv": [2, 0]}, "and each layer of this architecture has heads"),
        (
            "llama",
            {"attention__key_length": 32},
            "keys of 32 (attention.key_length) and values of 64 numbers",
        ),
        ("llama", {"rope__dimension_count": 32}, "llama.rope.dimension_count is 32, and 64 is possible"),
        ("phi3", {"rope__dimension_count": 31}, "phi3.rope.dimension_count is 31, and even numbers"),
        ("phi3", {"rope__dimension_count": 0}, "phi3.rope.dimension_count is 0, and even numbers"),
        (
            "phi3",
            {"rope__dimension_count": 66},
            "phi3.rope.dimension_count is 66, and even numbers from 2 to 64",
        ),
        (
            "deepseek2",
            {"attention__key_length": None},
            "where kv_lora_rank 512 and rope.dimension_count 64 make 576",
        ),
        (
            "deepseek2",
            {"attention__key_length_mla": 64},
            "rope.dimension_count is 64, and keys have 64 numbers",
        ),
        ("dots1", {"expert_gating_func": None}, "dots1.expert_gating_func is missing"),
        ("glm4moe", {"expert_gating_func": 9}, "glm4moe.expert_gating_func is 9, and 1 to 4 are possible"),
        ("dots1", {"attention__head_count_kv": 1}, "dots1.attention.head_count_kv is 1, and it has 2 heads"),
        ("gemma3", {"attention__sliding_window": (1 << 31) - 1}, "sliding_window is 2147483647"),
        ("afmoe", {"attention__sliding_window": None}, "afmoe.attention.sliding_window is missing"),
        ("arwkv7", {"token_shift_count": 2}, "arwkv7.token_shift_count is 2, and 1 to 1 are possible"),
        ("rwkv7", {"wkv__head_size": 3}, "rwkv7.wkv.head_size is 3, which does not divide 128"),
        (
            "gemma4",
            {"attention__shared_kv_layers": 1},
            "shared_kv_layers is 1, and no layer before is of their kind",
        ),
        ("glm-dsa", {"attention__indexer__types": [0, 1]}, "indexer.types is [0, 1], and the first is 1"),
        (
            "dots3note",
            {"attention__sliding_window_pattern": [0, 0]},
            "sliding_window_pattern is 0, and some layer has one",
        ),
        ("dots3note", {"attention__indexer__types": None}, "indexer.types is missing, and layer"),
        ("dots3note", {"attention__indexer__key_length": 32}, "less than its rope.dimension_count, 64"),
        ("deepseek2-ocr", {"attention__value_length": 32}, "value_length is 32, and 64 is possible"),
        ("deepseek2-ocr", {"rope__freq_base": 10001.0}, "rope.freq_base is 10001.0, and 10000.0 is possible"),
        ("bailingmoe3", {"kda__gate_lower_bound": 0.0}, "bailingmoe3.kda.gate_lower_bound is 0.0"),
        ("granite_swa", {"attention__rope_pattern": [0, 0]}, "rope_pattern is 0, and positions turn in some"),
        ("hrm_text", {"hrm__l_cycles": None}, "hrm_text.hrm.l_cycles is missing"),
        ("hrm_text", {"hrm__h_cycles": 3}, "where hrm.layers_per_stack"),
        ("hy_v4", {"attention__key_length_mla": None}, "hy_v4.attention.key_length_mla is missing"),
        ("maple", {"attention__sliding_window_pattern": [0, 0]}, "sliding_window_pattern is 0, and some"),
        ("minimax-m3", {"attention__indexer__block_size": None}, "attention.indexer.block_size is missing"),
        ("nanbeige", {"num_loops": 0}, "nanbeige.num_loops is 0, and 1 to 256 are possible"),
        ("paddleocr", {"rope__dimension_sections": None}, "dimension_sections is 0, and positions turn"),
        ("qwen2vl", {"rope__dimension_sections": [1, -1, 0, 0]}, "dimension_sections is [1, -1, 0, 0]"),
        ("qwen3vl", {"n_deepstack_layers": 3}, "qwen3vl.n_deepstack_layers is 3, and 0 to 2 are possible"),
        ("rwkv7", {"token_shift_count": 1}, "rwkv7.token_shift_count is 1, and 2 to 2 are possible"),
        ("rwkv6", {"wkv__head_size": 0}, "rwkv6.wkv.head_size is 0"),
        ("plamo2", {"ssm__group_count": 1}, "plamo2.ssm.group_count is 1, and 0 to 0 are possible"),
        ("llama", {"rope__freq_base": float("nan")}, "llama.rope.freq_base is nan"),
        ("llama", {"attention__layer_norm_rms_epsilon": float("inf")}, "layer_norm_rms_epsilon is inf"),
    ],
)
def test_refused_with_the_key_and_its_value(
    tmp_path: Path, architecture: str, changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_metadata(of(architecture, tmp_path, **changes))
    assert what in caught.value.message


@pytest.mark.parametrize(
    "key",
    ["context_length", "embedding_length", "block_count", HEADS, HEADS_KV, "expert_count", "expert_used_count",
     "attention.sliding_window", "attention.key_length", "rope.dimension_count", "nextn_predict_layers"],
)  # fmt: skip
@pytest.mark.parametrize("value", [True, "2", 2.0])
def test_other_types_are_no_whole_numbers(tmp_path: Path, key: str, value: object) -> None:
    """Python's True is 1, and llama.cpp's is not."""
    with pytest.raises(ModelFileError, match="not a whole number") as caught:
        read_metadata(of("llama", tmp_path, **{key.replace(".", "__"): value}))
    assert f"llama.{key}" in caught.value.message and repr(value) in caught.value.message


@pytest.mark.parametrize("key", ["general.file_type", "split.count", "split.no"])
def test_true_is_no_number_of_a_file_type_or_part(tmp_path: Path, key: str) -> None:
    path = header_only("llama").write(tmp_path / "true.gguf", {"split.count": 1, key: True})
    with pytest.raises(ModelFileError, match="not a whole number") as caught:
        read_metadata(path)
    assert f"'{key}' is 'True'" in caught.value.message


def test_true_is_no_token(tmp_path: Path) -> None:
    path = header_only("llama").write(tmp_path / "true.gguf", {"tokenizer.ggml.bos_token_id": True})
    assert read_metadata(path).bos_id == 11  # as if there were none


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("openelm", {"attention__head_count": [2, 4], "attention__head_count_kv": [1, 2]}),
        ("deci", {"attention__head_count": [2, 0], "attention__head_count_kv": [1, 0]}),
        ("gemma4", {"attention__head_count_kv": [2, 2, 2, 2, 1]}),
        ("granitehybrid", {"attention__head_count": 2, "attention__head_count_kv": [0, 2]}),
        ("lfm2", {"attention__head_count": 2, "attention__head_count_kv": [2, 0]}),
        ("nemotron_h_moe", {"expert_used_count": [0, 2, 0]}),
        ("llama", {"attention__head_count_kv": [2, 2], "feed_forward_length": [192, 192]}),
        ("llama", {"expert_used_count": [2, 1]}),
        ("hunyuan-dense", {"expert_count": 1, "expert_used_count": None}),
    ],
)
def test_lists_for_each_layer_of_real_models_are_accepted(
    tmp_path: Path, architecture: str, changes: dict[str, Any]
) -> None:
    metadata = read_metadata(of(architecture, tmp_path, **changes))
    for key, value in changes.items():
        if isinstance(value, list):
            assert metadata.per_layer(key.replace("__", ".")) == tuple(value)


def test_memory_is_counted_for_each_layer(tmp_path: Path) -> None:
    changes = {"attention__head_count": 4, "attention__key_length": 32, "attention__value_length": 16}
    alike = read_metadata(of("granitehybrid", tmp_path, **{**changes, "attention__value_length": 32}))
    assert alike.n_layer == 2
    options = ContextOptions(n_ctx=100)
    for heads_kv, cells in ((4, 8), ([4, 0], 4), ([0, 2], 2), ([2, 1], 3)):
        file = of("granitehybrid", tmp_path, attention__head_count=4, attention__head_count_kv=heads_kv)
        metadata = read_metadata(file)
        assert kv_cache_bytes(metadata, options) == cells * (32 + 32) * 2 * 100 + state_bytes(metadata)


def test_the_same_sentence_everywhere(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from localspec import LLM
    from localspec.cli import main as command

    bad = write_llama(tmp_path / "bad.gguf", extra={"llama.expert_count": 8})
    good = write_llama(tmp_path / "good.gguf")
    said = "bad.gguf is not a usable GGUF file: it has 8 experts, and llama.expert_used_count is missing."
    for files in ((bad, None), (bad, good), (good, bad)):
        with pytest.raises(ModelFileError) as caught:
            LLM.from_files(*files, n_ctx=64, home=tmp_path)
        assert said in caught.value.message
        arguments = ["check", *(str(file) for file in files if file)]
        assert said in CliRunner().invoke(command, arguments).output
    assert said in CliRunner().invoke(command, ["chat", str(bad), "-p", "x"]).output


# All keys of some architectures, in a child that loads what is not refused


WHOLE = {"llama": True, "gemma3": False, "deepseek2": True, "granitehybrid": True, "mamba": False}
"""Architecture -> whether with experts."""
KEYS = (
    "context_length", "embedding_length", "block_count", "feed_forward_length", HEADS, HEADS_KV,
    "attention.key_length", "attention.value_length", "attention.kv_lora_rank", "attention.key_length_mla",
    "attention.sliding_window", "attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base",
    "expert_count", "expert_used_count", "expert_feed_forward_length", "expert_gating_func",
    "leading_dense_block_count", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank",
    "ssm.group_count",
)  # fmt: skip


def mutations(file: TinyFile) -> Iterator[tuple[str, object]]:
    num_layers = file.values[f"{file.architecture}.block_count"]
    for name in KEYS:
        key = f"{file.architecture}.{name}"
        held = file.values.get(key, 1)
        one = held[0] if isinstance(held, list) else held
        for value in (None, 0, 1, 3, (1 << 32) - 1, True, "x", float("nan")):
            if value is not None or key in file.values:
                yield key, value
        for numbers in (
            [one] * num_layers,
            [0] * num_layers,
            [one, 0],
            [0, one],
            [one, 2 * one],
            [one],
            [True] * 2,
        ):
            yield key, numbers


def test_no_key_of_a_file_ends_the_process(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "tests.test_damaged_keys", str(tmp_path)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    last = (tmp_path / "current").read_text(encoding="utf-8")
    assert child.returncode == 0, f"{last}: {child.stderr[-2000:]}"
    outcome = json.loads(child.stdout)
    assert outcome["good"] == len(WHOLE)
    assert outcome["ModelFileError"] > 200 and outcome["loaded"] > 50


def load(path: Path) -> None:
    from localspec.decoding.session import Span
    from localspec.llama.weights import Weights

    weights = Weights(path, gpu_layers=0, use_mmap=False, repack=False)
    try:
        context = weights.open_context(ContextOptions(n_ctx=32, n_batch=8, n_outputs=2, threads=1))
        context.decode([Span(0, (65, 66, 67), 0, 1)])
        context.decode([Span(0, (68,), 3, 1)])
        context.close()
    finally:
        weights.close()


def main(folder: Path) -> None:
    counts: dict[str, int] = {"good": 0}
    for architecture, experts in WHOLE.items():
        file = tiny(architecture, folder, experts=experts)
        load(file.write(folder / "good.gguf"))
        counts["good"] += 1
        for key, value in mutations(file):
            (folder / "current").write_text(f"{key} is {value!r}", encoding="utf-8")
            try:
                load(file.write(folder / "bad.gguf", {key: value}))
                outcome = "loaded"
            except LocalspecError as error:
                outcome = type(error).__name__
            counts[outcome] = counts.get(outcome, 0) + 1
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
