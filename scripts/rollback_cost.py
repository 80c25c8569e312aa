"""What a round costs where drafted tokens are taken back from a running state, and from which acceptance on it pays.

    python scripts/rollback_cost.py [FOLDER] [--layers 12] [--width 2048] [--threads N] [--keep]

Writes a hybrid model with a gated delta net and random weights (Q8_0, about 1 GB with the sizes above) into FOLDER, by
default a temporary one, and takes tokens back in each way that llama.cpp has for it. Prints a line of JSON for each:
milliseconds of a pass over 1 and over K + 1 tokens, of the copies, and of reading again behind a refused token, then
the share of drafted tokens that must stand for drafting to pay, by what a drafted token costs (as a share of a pass
over one token). The first line is the pass alone, as if taking back cost nothing, which is so for attention. Under
three minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from localspec.compute.context_options import ContextOptions
from localspec.compute.library import Context
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.calibrate import calibrate
from localspec.decoding.costs import CostTable
from localspec.decoding.rollback import CUT, WayBack, rollback_seconds
from localspec.decoding.session import Session
from localspec.engine.libraries import reference
from localspec.gguf.metadata import read_metadata
from localspec.gguf.running_state import state_bytes

LENGTHS = (1, 2, 4, 8)
"""Drafted tokens of the rounds that are timed."""
DRAFT_COSTS = (0.0, 0.1, 0.2, 0.4)
ROUNDS, PROMPT, DEPTH = 5, 64, 8
STATE, HEAD = 128, 256
VOCABULARY = 16384
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def write_hybrid(path: Path, layers: int, width: int) -> Path:
    """A gated delta net with attention in every fourth layer."""
    inner, feed, heads = 2 * width, 3 * width, max(width // HEAD, 1)
    groups, rank = inner // STATE // 2, inner // STATE
    convolved = inner + 2 * groups * STATE
    writer = gguf.GGUFWriter(path, "qwen35")
    for key, value in {
        "context_length": 4096, "embedding_length": width, "block_count": layers, "feed_forward_length": feed,
        "attention.head_count": heads, "attention.head_count_kv": max(heads // 4, 1), "attention.key_length": HEAD,
        "attention.value_length": HEAD, "full_attention_interval": 4, "rope.dimension_count": 64,
        "ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": STATE, "ssm.time_step_rank": rank,
        "ssm.group_count": groups,
    }.items():  # fmt: skip
        writer.add_uint32(f"qwen35.{key}", value)
    writer.add_float32("qwen35.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("qwen35.rope.freq_base", 1e7)
    writer.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{token}" for token in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["t 0"])
    scale = np.float32(1 / np.sqrt(width))
    packed = gguf.quants.quantize(
        random_numbers() * scale, Q8_0
    )  # one block for all: what they are changes no time
    for name, value in tensors(layers, width, inner, feed, heads, rank, convolved):
        if isinstance(value, tuple):
            rows, columns = value
            writer.add_tensor(name, np.resize(packed, (rows, columns // 32 * 34)), raw_dtype=Q8_0)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_numbers() -> Any:
    """Normal ones, float32."""
    return np.random.default_rng(1).standard_normal(1 << 20, dtype=np.float32)


def tensors(
    layers: int, width: int, inner: int, feed: int, heads: int, rank: int, convolved: int
) -> Iterator[tuple[str, Any]]:
    """Names, and values in float32 or the numbers of rows and columns of a Q8_0 matrix."""
    block = random_numbers()
    ones = np.ones(max(width, HEAD, STATE), dtype=np.float32)
    kv = max(heads // 4, 1) * HEAD
    yield "token_embd.weight", (VOCABULARY, width)
    yield "output_norm.weight", ones[:width]
    for layer in range(layers):
        name = f"blk.{layer}."
        yield f"{name}attn_norm.weight", ones[:width]
        yield f"{name}post_attention_norm.weight", ones[:width]
        if (layer + 1) % 4 == 0:
            yield f"{name}attn_q.weight", (2 * heads * HEAD, width)
            yield f"{name}attn_k.weight", (kv, width)
            yield f"{name}attn_v.weight", (kv, width)
            yield f"{name}attn_output.weight", (width, heads * HEAD)
            yield f"{name}attn_q_norm.weight", ones[:HEAD]
            yield f"{name}attn_k_norm.weight", ones[:HEAD]
        else:
            yield f"{name}attn_qkv.weight", (convolved, width)
            yield f"{name}attn_gate.weight", (inner, width)
            yield f"{name}ssm_conv1d.weight", np.resize(block, (convolved, 4))
            yield f"{name}ssm_dt.bias", block[:rank]
            yield f"{name}ssm_a", -np.abs(block[:rank])
            yield f"{name}ssm_beta.weight", (rank, width)
            yield f"{name}ssm_alpha.weight", (rank, width)
            yield f"{name}ssm_norm.weight", ones[:STATE]
            yield f"{name}ssm_out.weight", (width, inner)
        yield f"{name}ffn_gate.weight", (feed, width)
        yield f"{name}ffn_up.weight", (feed, width)
        yield f"{name}ffn_down.weight", (width, feed)


def refused_round(session: Session, length: int) -> tuple[float, float]:
    """Seconds of a round whose drafted tokens are all refused, and of the copies in it; then back to where it was."""
    context = session.context
    before, started = rollback_seconds(context), time.perf_counter()
    held = len(session.tokens)
    session.forward([7] * (length + 1), num_logits=length + 1, sure=held + 1)
    session.rollback(held + 1)
    seconds, copies = time.perf_counter() - started, rollback_seconds(context) - before
    session.forward(
        [7] * (held + 2 - len(session.tokens))
    )  # what is read again, if anything, and the next token
    return seconds, copies


def measured(context: Context, back: WayBack) -> dict[str, Any]:
    """What rounds cost in a context, and break-even acceptances."""
    table = calibrate(context, verifies=True, max_seconds=10.0).table
    session = Session(context)
    session.forward(list(range(1, PROMPT + 1)), num_logits=0)
    rounds = {}
    for length in LENGTHS:
        samples = [refused_round(session, length) for _ in range(ROUNDS)]
        seconds, copies = (statistics.median(column) for column in zip(*samples, strict=True))
        back.seconds = copies if back.reads_again else 0.0
        rounds[length] = seconds if back.reads_again else seconds - copies
    again = table.time(2) - table.time(1) if back.reads_again else 0.0
    return {
        "way": back.rollback.kind,
        "pass_ms": {1 + length: ms(table.time(1 + length)) for length in (0, *LENGTHS)},
        "refused_round_ms": {length: ms(seconds) for length, seconds in rounds.items()},
        "copies_ms": ms(back.seconds),
        "read_again_ms": ms(again),
        "break_even_acceptance": {cost: break_even(table, back, cost) for cost in DRAFT_COSTS},
    }


def break_even(table: CostTable, back: WayBack, cost: float) -> float | None:
    """The least share of drafted tokens that stand with which the best draft length is faster than none."""
    most = back.rollback.limit or 31
    control = AdaptiveController(table, CostTable({1: cost * table.time(1)}), max_width=most + 1, back=back)
    shares = np.arange(0.0, 1.0, 0.005)
    return next(
        (round(float(a), 3) for a in shares if control.seconds_per_token(0, a) < 0.995 * table.time(1)), None
    )


def ms(seconds: float) -> float:
    """Milliseconds, to a tenth."""
    return round(1000 * seconds, 1)


def main(arguments: list[str] | None = None) -> None:
    """Parse, write, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--keep", action="store_true", help="leave the file where it is")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        path = (asked.folder or Path(temporary)) / f"hybrid-{asked.layers}-{asked.width}.gguf"
        if not path.exists():
            write_hybrid(path, asked.layers, asked.width)
        metadata = read_metadata(path)
        print(
            json.dumps({"file_bytes": metadata.size_bytes, "state_bytes": state_bytes(metadata)}), flush=True
        )
        weights = reference().open_weights(metadata)
        try:
            for depth, free in ((0, True), (DEPTH, False), (0, False)):
                context = weights.open_context(
                    ContextOptions(
                        n_ctx=1024, n_batch=64, n_outputs=16, threads=asked.threads, snapshots=depth
                    )
                )
                print(json.dumps(measured(context, WayBack(CUT if free else context.rollback))), flush=True)
                context.close()
        finally:
            weights.close()
        if not asked.keep:
            path.unlink()


if __name__ == "__main__":
    main()
