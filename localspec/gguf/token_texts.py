"""The bytes that each token of a vocabulary stands for, whatever way its kind of tokenizer writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

KNOWN_KINDS = frozenset({"gpt2", "llama", "gemma4"})
"""Kinds of tokenizers (`tokenizer.ggml.model`) whose way of writing bytes is known here."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_BLANK = "▁".encode()
_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class TokenTexts:
    """A vocabulary as bytes, by id.

    texts:   what each token stands for, b"" for one that stands for nothing. A control token has its name.
    control: one byte each, 1 for control tokens (and the unknown one): their names are no text.
    """

    texts: tuple[bytes, ...] = field(repr=False)
    control: bytes = field(repr=False)


def token_texts(kind: str, tokens: tuple[bytes, ...], types: bytes, names: frozenset[str]) -> TokenTexts:
    """As llama.cpp's `llama_token_to_piece` has them, control tokens included.

    kind: one of KNOWN_KINDS. tokens, types: as in `Metadata`. names: texts that are taken for control tokens.
    """
    written = {name.encode("utf-8", errors="replace") for name in names}
    types = types or bytes((NORMAL,)) * len(tokens)
    control = bytes(
        kind_of in (UNKNOWN, CONTROL) or token in written
        for token, kind_of in zip(tokens, types, strict=True)
    )
    read = _from_letters if kind == "gpt2" else _from_pieces
    return TokenTexts(tuple(read(tokens, types, control)), control)


def _from_letters(tokens: tuple[bytes, ...], types: bytes, control: bytes) -> Iterator[bytes]:
    """Byte-level: a letter stands for each byte (as GPT-2's tokenizer has it)."""
    table = {ord(letter): byte for byte, letter in enumerate(_letters())}
    for token, kind, named in zip(tokens, types, control, strict=True):
        if named or kind == USER_DEFINED:
            yield token
        elif kind != NORMAL:
            yield b""
        else:
            try:
                yield token.decode().translate(table).encode("latin-1")
            except UnicodeError:  # letters that stand for no byte: no text spells such a token
                yield b""


def _from_pieces(tokens: tuple[bytes, ...], types: bytes, control: bytes) -> Iterator[bytes]:
    """SentencePiece: a mark for the blank, and a name for each byte."""
    for token, kind, named in zip(tokens, types, control, strict=True):
        if named or kind == USER_DEFINED:
            yield token
        elif kind == BYTE:
            found = _BYTE.fullmatch(token)
            yield bytes((int(found[1], 16),)) if found else token
        else:
            yield token.replace(_BLANK, b" ") if kind == NORMAL else b""


def _letters() -> str:
    """The letter for each byte: printable ones stand for themselves, the others for the first ones behind 255."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))
