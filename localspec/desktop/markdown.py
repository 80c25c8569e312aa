"""Markdown: an answer as HTML that Qt shows, with highlighted code, in blocks that can be drawn one by one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name
from pygments.util import ClassNotFound

LONGEST_BLOCK = 4000
"""Characters from which on a block is cut at the end of any line: what is drawn again and again has to stay short."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[^`]*$")
_CONTINUES = re.compile(r"\s|[-*+>]|\d+[.)]")
"""How a line behind an empty one begins that may belong to the block before it."""


class Markdown:
    """dark: whether light text is drawn on a dark ground."""

    def __init__(self, dark: bool) -> None:
        self._formatter = HtmlFormatter(
            nowrap=True, noclasses=True, style="github-dark" if dark else "friendly"
        )
        self._parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
        self._parser.disable("image")  # a picture would be read from this disk
        self._parser.validateLink = lambda url: url.startswith(("http://", "https://"))  # type: ignore[method-assign]
        self._parser.renderer.rules["fence"] = self._code  # type: ignore[attr-defined]
        self._parser.renderer.rules["code_block"] = self._code  # type: ignore[attr-defined]

    def html(self, text: str) -> str:
        """Of a block, or several."""
        made: str = self._parser.render(text)
        return made.replace("<table>", '<table border="1" cellspacing="0" cellpadding="4">')

    def _code(self, tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
        token = tokens[index]
        name = token.info.split()[0] if token.info.strip() else ""
        try:
            lexer = get_lexer_by_name(name, stripnl=False) if name else TextLexer(stripnl=False)
        except ClassNotFound:
            lexer = TextLexer(stripnl=False)
        lines = highlight(token.content.rstrip("\n"), lexer, self._formatter).rstrip("\n")
        return f"<pre>{lines}</pre>"


def style_sheet(dark: bool) -> str:
    """How Qt draws this HTML."""
    ground = "#262b33" if dark else "#f0f1f4"
    return f"""
        p {{ margin: 6px 0 6px 0 }}
        p.head {{ margin: 18px 0 0 0; color: gray }}
        p.asked {{ margin: 4px 40px 4px 0; white-space: pre-wrap; background-color: {ground} }}
        a.action {{ color: gray; text-decoration: none }}
        a {{ color: {"#7fb2ff" if dark else "#1a5fb4"} }}
        pre, code {{ background-color: {ground} }}
        pre {{ margin: 0; white-space: pre-wrap }}
        blockquote {{ color: gray; margin: 6px 24px 6px 24px }}
        h1, h2, h3, h4 {{ margin: 12px 0 4px 0 }}
        h1 {{ font-size: large }} h2 {{ font-size: large }} h3 {{ font-size: medium }} h4 {{ font-size: medium }}
    """


def plain_html(text: str) -> str:
    """A text as it was typed."""
    return f'<p class="asked">{escape(text)}</p>'


def first_block(text: str) -> tuple[int, str]:
    """Where the first finished block of the text ends, 0 where it goes on; and what the rest has to begin with: the
    line that opens a block of code again, where a long one is cut.
    """
    fence, opening, place, empty = "", "", 0, False
    for line in text.splitlines(keepends=True):
        if place and ((empty and not fence and not _CONTINUES.match(line)) or place > LONGEST_BLOCK):
            return place, opening
        if not line.endswith("\n"):
            break
        found = _FENCE.match(line.rstrip())
        if fence and found and found[1].startswith(fence) and line.strip() == found[1]:
            fence = opening = ""
        elif found and not fence:
            fence, opening = found[1], line
        empty = not line.strip()
        place += len(line)
    if len(text) - place > LONGEST_BLOCK:  # a line without end
        return text.rfind(" ", place + 1, place + LONGEST_BLOCK) + 1 or place + LONGEST_BLOCK, opening
    return 0, ""
