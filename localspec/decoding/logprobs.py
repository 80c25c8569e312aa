"""Log-probabilities of committed tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localspec.decoding.distribution import Logits


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the target found a token, before any option: the log-softmax of its raw logits.

    top: the likeliest tokens of that position and their log-probabilities, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprob(row: Logits, token: int, num_top: int) -> TokenLogprob:
    """For a row of raw logits, shape (V,), and the token committed from it."""
    best = row.max()
    normaliser = float(best) + float(np.log(np.exp(row - best, dtype=np.float64).sum()))
    count = min(num_top, len(row))
    top: list[tuple[int, float]] = []
    if count:
        ids = np.argpartition(row, len(row) - count)[len(row) - count :]
        order = np.lexsort((ids, -row[ids]))
        top = [(int(index), float(row[index]) - normaliser) for index in ids[order]]
    return TokenLogprob(token, float(row[token]) - normaliser, tuple(top))
