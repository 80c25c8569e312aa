"""Log-probabilities of committed tokens, and of those of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from localspec.decoding.sampling import Logits, largest
from localspec.decoding.session import Session


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


def prompt_logprobs(session: Session, ids: Sequence[int], num_top: int) -> Iterator[TokenLogprob]:
    """Those of every id but the first, which nothing comes before. The session holds all but the last in the end.

    Passes are as wide as rows may be read from one (`n_outputs`), and nothing that was kept is used: its rows are gone.
    """
    session.align(ids[:1])
    size = min(session.context.n_batch, session.context.n_outputs)
    for start in range(0, len(ids) - 1, size):
        piece = ids[start : min(start + size, len(ids) - 1)]
        rows = session.forward(piece, num_logits=len(piece))
        for row, token in zip(rows, ids[start + 1 :], strict=False):
            yield token_logprob(row, token, num_top)
