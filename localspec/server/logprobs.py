"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from localspec.decoding.logprobs import TokenLogprob

LEAST = -9999.0
"""OpenAI's number for what has no probability: JSON has no infinity."""
Piece = Callable[[int], bytes]


def chat_logprobs(logprobs: Sequence[TokenLogprob], piece: Piece) -> dict[str, Any]:
    """The form of chat completions. piece: bytes of a token."""
    content = [
        {**_token(item.token, item.logprob, piece),
         "top_logprobs": [_token(token, value, piece) for token, value in item.top]}
        for item in logprobs
    ]  # fmt: skip
    return {"content": content, "refusal": None}


def completion_logprobs(logprobs: Sequence[TokenLogprob], piece: Piece, offset: int = 0) -> dict[str, Any]:
    """The form of completions. offset: characters before the first token."""
    tokens = [_text(item.token, piece) for item in logprobs]
    offsets = []
    for text in tokens:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": tokens,
        "token_logprobs": [_number(item.logprob) for item in logprobs],
        "top_logprobs": [_best(item, piece) for item in logprobs],
        "text_offset": offsets,
    }


def _best(item: TokenLogprob, piece: Piece) -> dict[str, float]:
    """By text; of two tokens with the same text the likelier one."""
    best: dict[str, float] = {}
    for token, value in item.top:
        best.setdefault(_text(token, piece), _number(value))
    return best


def _token(token: int, logprob: float, piece: Piece) -> dict[str, Any]:
    data = piece(token)
    return {"token": _text(token, piece), "logprob": _number(logprob), "bytes": list(data)}


def _text(token: int, piece: Piece) -> str:
    return piece(token).decode("utf-8", "replace")


def _number(logprob: float) -> float:
    return max(logprob, LEAST)
