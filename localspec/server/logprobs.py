"""Log-probabilities in OpenAI's forms, and where their tokens stand in the text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from localspec.answers.request import Chunk
from localspec.decoding.logprobs import TokenLogprob
from localspec.llm import LLM

LEAST = -9999.0
"""OpenAI's number for what has no probability: JSON has no infinity."""
BACKSLASH = 0x5C


class Pieces:
    """The bytes of tokens. shown_tokens: texts of control tokens that answers show; they show no others."""

    def __init__(self, llm: LLM, shown_tokens: Collection[str] = ()) -> None:
        self._llm = llm
        self._shown = {text.encode() for text in shown_tokens}

    def whole(self, token: int) -> bytes:
        """Of any token."""
        return self._llm.token_bytes([token])

    def shown(self, token: int) -> bytes:
        """What an answer shows of it: nothing of most control tokens."""
        with self._llm.using() as engine:
            piece = engine.vocab.piece(token)
        whole = piece or self.whole(token)
        return whole if piece or whole in self._shown else b""


@dataclass(frozen=True)
class Placed:
    """A token of a text. offset: characters before the one that it begins in. logprob: None where nothing precedes."""

    token: int
    offset: int
    logprob: TokenLogprob | None


class Places:
    """Where the tokens of a text stand, one after the other. start: characters before the first."""

    def __init__(self, start: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._count = start

    def push(self, data: bytes) -> int:
        """The offset of a token of these bytes: that of the character to which its first byte belongs."""
        begun = self._decoder.getstate()[0] + data[:1]
        offset = self._count + max(len(begun.decode("utf-8", "replace")) - 1, 0)
        self._count += len(self._decoder.decode(data))
        return offset


class TextTokens:
    """The tokens of one answer, each as soon as its text is given out: what a stop string takes back is unknown before.

    show: the bytes that the answer shows of a token. start: characters before the answer.
    """

    def __init__(self, show: Callable[[int], bytes], start: int = 0) -> None:
        self._show, self._places, self._end = show, Places(start), start
        self._held: list[Placed] = []

    def push(self, chunk: Chunk) -> list[Placed]:
        """Those whose text begins in what was given out; with the completion all, none of them behind the text."""
        return self.take(chunk.text, chunk.logprobs, last=chunk.completion is not None)

    def split(self, chunk: Chunk) -> list[tuple[str, list[Placed]]]:
        """The chunk's text, cut where tokens begin, each piece with its token: for who tells texts apart."""
        start, tokens = self._end, self.push(chunk)
        cuts = [start, *(token.offset for token in tokens), self._end]
        owners = [[], *([token] for token in tokens)]
        texts = [chunk.text[low - start : high - start] for low, high in pairwise(cuts)]
        return list(zip(texts, owners, strict=True))

    def take(self, text: str, logprobs: Sequence[TokenLogprob], *, last: bool) -> list[Placed]:
        """The same for the next `text` and the next tokens."""
        self._end += len(text)
        self._held += [
            Placed(item.token, self._places.push(self._show(item.token)), item) for item in logprobs
        ]
        if last:
            done = [replace(item, offset=min(item.offset, self._end)) for item in self._held]
        else:
            done = [item for item in self._held if item.offset < self._end]
        self._held = self._held[len(done) :]
        return done


def prompt_tokens(
    ids: Sequence[int], logprobs: Sequence[TokenLogprob | None], text: str, piece: Callable[[int], bytes]
) -> list[Placed]:
    """The tokens of a prompt that is shown as `text`; what the tokenizer puts before it (a BOS) is not.

    Nor is the blank that some put before it, and after each special token in it.
    """
    data = _shown_parts([piece(token) for token in ids], text.encode())
    places, found = Places(), []
    for token, logprob, part in zip(ids, logprobs, data, strict=True):
        found.append(Placed(token, min(places.push(part), len(text)), logprob))
    return found


def _shown_parts(data: Sequence[bytes], text: bytes) -> list[bytes]:
    """What `text` shows of each token, found from its end: whatever was put in is in front of what was typed."""
    end, parts = len(text), []
    for part in reversed(data):
        fits = (shown for shown in (part, part.removeprefix(b" "), b"") if text.endswith(shown, 0, end))
        parts.append(next(fits))
        end -= len(parts[-1])
    if end:  # the tokens do not spell the text: all that is too much counts as before it
        hidden, parts = max(sum(map(len, data)) - len(text), 0), []
        for part in data:
            parts.append(part[hidden:])
            hidden = max(hidden - len(part), 0)
        return parts
    return parts[::-1]


def chat_logprobs(logprobs: Sequence[TokenLogprob], pieces: Pieces) -> dict[str, Any]:
    """The form of chat completions."""
    return {"content": [token_logprob(item, pieces) for item in logprobs], "refusal": None}


def token_logprob(item: TokenLogprob, pieces: Pieces) -> dict[str, Any]:
    """One token in the form of chat completions and responses; no bytes for what is not shown."""
    top = [_token(token, value, pieces) for token, value in item.top]
    return {**_token(item.token, item.logprob, pieces), "top_logprobs": top}


def completion_logprobs(tokens: Sequence[Placed], pieces: Pieces) -> dict[str, Any]:
    """The form of completions."""
    return {
        "tokens": [_name(item.token, pieces) for item in tokens],
        "token_logprobs": [
            None if item.logprob is None else _number(item.logprob.logprob) for item in tokens
        ],
        "top_logprobs": [None if item.logprob is None else _best(item.logprob, pieces) for item in tokens],
        "text_offset": [item.offset for item in tokens],
    }


def _best(item: TokenLogprob, pieces: Pieces) -> dict[str, float]:
    """By text, the token itself always among them; of two tokens with the same text the likelier one."""
    best: dict[str, float] = {}
    for token, value in (*item.top, (item.token, item.logprob)):
        best.setdefault(_name(token, pieces), _number(value))
    return best


def _token(token: int, logprob: float, pieces: Pieces) -> dict[str, Any]:
    text = pieces.whole(token).decode("utf-8", "replace")
    return {"token": text, "logprob": _number(logprob), "bytes": list(pieces.shown(token)) or None}


def _name(token: int, pieces: Pieces) -> str:
    r"""A token's text; for parts of characters as OpenAI writes them, such as `bytes:\xe2\x98`."""
    data = pieces.whole(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        written = (
            chr(byte) if 0x20 <= byte < 0x7F and byte != BACKSLASH else f"\\x{byte:02x}" for byte in data
        )
        return f"bytes:{''.join(written)}"


def _number(logprob: float) -> float:
    return max(logprob, LEAST)
