"""Raw logits to a distribution. The same function makes the target's and the draft's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from localspec.decoding.distribution import Distribution, Logits
from localspec.decoding.params import SamplingParams
from localspec.decoding.truncation import candidates
from localspec.errors import DecodeError, NoTokenLeft


def distribution(logits: Logits, params: SamplingParams, history: Sequence[int] = ()) -> Distribution:
    """The distribution that penalties, bias, filters and temperature make of one row of raw logits.

    logits:  shape (V,), float32, not changed.
    history: every id before the position this row predicts; read by the penalties only.
    Raises `DecodeError` when the row holds no finite logit or a NaN, `NoTokenLeft` when `logit_bias` leaves none.
    """
    return choose(adjusted(logits, params, history), params, raw=logits)


def choose(logits: Logits, params: SamplingParams, raw: Logits) -> Distribution:
    """Filters and temperature on logits that everything else was applied to; `raw` is the row as the model gave it.

    Raises `DecodeError` when there is no finite logit or a NaN, `NoTokenLeft` when options took them all.
    """
    best = int(np.argmax(logits))  # the first NaN, if there is one
    if not math.isfinite(logits[best]):
        raise _no_choice(raw, float(logits[best]), best)
    if params.greedy and params.typical_p == 1:
        return Distribution.point(best)  # which no other filter takes away
    tokens, values = candidates(logits, params)
    if params.greedy:
        return Distribution.point(int(tokens[np.argmax(values)]))
    scaled = (values - values.max()) / params.temperature
    return Distribution.normalised(tokens, np.exp(scaled))


def adjusted(logits: Logits, params: SamplingParams, history: Sequence[int]) -> Logits:
    """Bias and penalties (llama.cpp's formulas): a copy, or the row itself where there are none."""
    if not params.logit_bias and not (params.penalised and history):
        return logits
    logits = logits.copy()
    for token, bias in params.logit_bias.items():
        if token < len(logits):
            logits[token] += bias
    if params.penalised:
        window = history if params.repeat_last_n == -1 else history[-params.repeat_last_n :]
        seen, counts = np.unique(np.asarray(window, dtype=np.int64), return_counts=True)
        known = seen < len(logits)
        seen, counts = seen[known], counts[known]
        values = logits[seen]
        values = np.where(values > 0, values / params.repeat_penalty, values * params.repeat_penalty)
        logits[seen] = values - counts * params.frequency_penalty - params.presence_penalty
    return logits


def _no_choice(raw: Logits, value: float, token: int) -> DecodeError | NoTokenLeft:
    if value == -math.inf and math.isfinite(raw[int(np.argmax(raw))]):
        return NoTokenLeft(
            "logit_bias and the other options leave no token that could come next.",
            "They must leave at least one.",
            name="logit_bias",
        )
    return DecodeError(
        f"The model returned a logit of {value} for token {token}.",
        "Its file may be damaged: `localspec pull NAME` verifies the files of a pair.",
        code=0,
    )
