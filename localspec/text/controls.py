"""Control characters in texts of others: in a terminal they could move the cursor, retitle the window or do worse."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with control characters, except tab and line breaks, replaced by U+FFFD."""
    return _CONTROL.sub("\ufffd", text)
