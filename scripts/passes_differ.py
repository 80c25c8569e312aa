"""How far the logits behind a text move with the width of the passes that read it.

    python scripts/passes_differ.py TARGET.gguf [--tokens 100] [--strict] [--no-repack]

A text that is read cold goes through wide passes; one whose beginning was kept, or was answered token by token, went
through narrow ones. Prints a line of JSON for each width, compared with one that is as wide as possible: the largest
difference of a logit, the largest one of a log-probability among tokens above 0.1 %, the KL divergence in nats, and
whether the likeliest token is the same.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.session import Span
from localspec.engine.engine import Engine
from localspec.engine.options import EngineOptions

WIDTHS = (1, 2, 4, 8, 32, 128)
LIKELY = 1e-3
TEXT = Path(__file__).resolve().parent.parent / "docs" / "design.md"


def row_behind(engine: Engine, ids: tuple[int, ...], width: int) -> NDArray[np.float64]:
    """Logits (V,) behind the ids, read from an empty cache in passes of `width`."""
    context = engine.target
    context.truncate(0, 0)
    row = np.empty(0)
    for start in range(0, len(ids), width):
        span = Span(0, ids[start : start + width], start, 1)
        row = np.array(context.decode([span])[0][-1], dtype=np.float64)
    return row


def difference(ours: NDArray[np.float64], other: NDArray[np.float64]) -> dict[str, float | bool]:
    """How two rows of logits differ."""
    log_ours, log_other = (row - np.logaddexp.reduce(row) for row in (ours, other))
    probabilities = np.exp(log_ours)
    apart = np.abs(log_ours - log_other)
    return {
        "largest_logit": round(float(np.abs(ours - other).max()), 4),
        "largest_logprob": round(float(apart[probabilities > LIKELY].max()), 4),
        "kl": round(float((probabilities * (log_ours - log_other)).sum()), 6),
        "same_likeliest": bool(ours.argmax() == other.argmax()),
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--no-repack", action="store_true")
    asked = parser.parse_args()
    options = EngineOptions(
        n_ctx=asked.tokens + 8,
        threads=asked.threads,
        strict=asked.strict,
        repack=not asked.no_repack,
        no_draft=True,
    )
    engine = Engine(asked.target, None, options)
    try:
        ids = tuple(engine.vocab.tokenize(TEXT.read_text(encoding="utf-8"), parse_special=False))
        ids = ids[: asked.tokens]
        widest = min(engine.target.n_batch, len(ids))
        reference = row_behind(engine, ids, widest)
        for width in [width for width in WIDTHS if engine.session.min_width <= width < widest]:
            facts = difference(reference, row_behind(engine, ids, width))
            print(json.dumps({"tokens": len(ids), "width": width} | facts), flush=True)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
