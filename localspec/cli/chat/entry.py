"""What is typed as one message: a text in triple quotes may have any lines."""

from __future__ import annotations

QUOTES = '"""'


def is_open(text: str) -> bool:
    """Whether a text in triple quotes was begun and not ended: Enter then makes a new line."""
    text = text.strip()
    return text.startswith(QUOTES) and (len(text) < 2 * len(QUOTES) or not text.endswith(QUOTES))


def unquoted(text: str) -> str | None:
    """What stands in the triple quotes, without the line breaks beside them; None for a text without them."""
    text = text.strip()
    if not text.startswith(QUOTES):
        return None
    return text.removeprefix(QUOTES).removesuffix(QUOTES).removeprefix("\n").removesuffix("\n")
