"""Log-probabilities of committed tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localspec.decoding.sampling import Logits, largest


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the target found a token, before any option: the log-softmax of its raw logits.

    top: the likeliest tokens of that position and their log-probabilities, best first; of equal ones the lower id.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprob(row: Logits, token: int, num_top: int) -> TokenLogprob:
    """For a row of raw logits, shape (V,), and the token committed from it."""
    best = row.max()
    normaliser = float(best) + float(np.log(np.exp(row - best, dtype=np.float64).sum()))
    ids = largest(row, min(num_top, len(row))) if num_top else ()
    top = sorted(((int(index), float(row[index]) - normaliser) for index in ids), key=lambda pair: -pair[1])
    return TokenLogprob(token, float(row[token]) - normaliser, tuple(top))
