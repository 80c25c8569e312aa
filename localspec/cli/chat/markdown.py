"""Markdown for the terminal: where its blocks end while it still grows, and each block in lines."""

from __future__ import annotations

import difflib
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from markdown_it import MarkdownIt
from rich import box
from rich.console import COLOR_SYSTEMS, Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from rich.theme import Theme

from localspec.text.controls import printable

# Without HTML and references, for both are not shown: List<int> and [1]: text stay what they are.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("reference")
_THEME = Theme({"markdown.code": "cyan", "markdown.h1": "bold underline", "markdown.h2": "bold"})
_ORNAMENTS = str.maketrans("•─━│┃▌", "*--|||")
_PART = 80
"""Words of an answer that are looked at together, to find out which of those shown were drafted."""
_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Line:
    """One line as it is printed, and the columns that it takes."""

    text: str
    cells: int


def finished(text: str) -> list[str]:
    """The blocks of a growing text that nothing behind them can change any more. What is left is unfinished.

    A block is finished where a whole line of another one stands behind it.
    """
    lines = text.split("\n")
    tokens = _PARSER.parse("\n".join(lines[:-1]))
    starts = [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
    return [
        "\n".join([*lines[start:end], ""]) for start, end in zip([0, *starts[1:]], starts[1:], strict=False)
    ]


def blocks(text: str) -> list[str]:
    """All blocks of a text, the last of which may be unfinished."""
    parts = finished(f"{text}\n")
    rest = text[sum(map(len, parts)) :]
    return [*parts, rest] if rest.strip() else parts


def is_table(block: str) -> bool:
    """Whether its lines may still become wider or narrower: columns fit their longest cell."""
    return any(token.type == "table_open" for token in _PARSER.parse(block))


class _Heading(Heading):
    """At the left, like all that stands below it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        yield text


class _Item(ListItem):
    """With the point behind its number."""

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        width = len(f"{last_number}. ") + 1
        first = Segment(f"{number}. ".rjust(width), console.get_style("markdown.item.number", default="none"))
        rows = console.render_lines(self.elements, options.update(width=options.max_width - width), pad=False)
        for at, row in enumerate(rows):
            yield first if at == 0 else Segment(" " * width)
            yield from row
            yield Segment("\n")


class _Table(TableElement):
    """As narrow as its cells; none of them is cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True, header_style="bold")
        if self.header is not None and self.header.row is not None:
            for cell in self.header.row.cells:
                table.add_column(cell.content, justify=cell.justify, overflow="fold")
        for row in self.body.rows if self.body is not None else ():
            table.add_row(*(cell.content for cell in row.cells))
        yield table


class _Code(CodeBlock):
    """Set in by two columns, in the terminal's own colours."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip("\n").expandtabs(4)
        syntax = Syntax("", self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True)
        text = syntax.highlight(code)
        text.right_crop(len(text.plain) - len(text.plain.rstrip("\n")))
        yield Padding(text, (0, 0, 0, 2))


class _Document(Markdown):
    """What the parser above reads, in which each line break stays one."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "list_item_open": _Item,
        "table_open": _Table,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, text: str, *, highlight: bool) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = _PARSER.parse(text)
        for token in self._flatten_tokens(self.parsed):
            token.content = printable(
                token.content
            )  # %1B in a link, and &#27;, become control characters here
            if token.type == "softbreak":
                token.type = "hardbreak"
            elif token.type == "fence" and not highlight:
                token.info = "text"


class Renderer:
    """Blocks to lines, as far as the console shows colours and characters.

    accepted: whether drafted characters are painted; code then has no other colours.
    """

    def __init__(self, *, accepted: bool) -> None:
        console = Console(file=sys.stdout, force_terminal=True)
        self._accepted, self._plain = accepted, console.no_color
        self._system = COLOR_SYSTEMS.get(console.color_system or "")
        self._can_show = _shows(sys.stdout.encoding, "•─│▌")
        self.paint = Style(underline=True) if console.no_color else Style(color="green")

    def lines(self, block: str, marks: Sequence[bool], width: int) -> list[Line]:
        """The lines of one block. marks: for each of its characters, whether it was drafted."""
        console = Console(file=io.StringIO(), width=max(width, 4), force_terminal=True, theme=_THEME)
        document = _Document(block, highlight=not self._accepted)
        rows = console.render_lines(document, console.options, pad=False)
        rows = [_without_end(Segment.simplify(row)) for row in rows]
        if self._accepted:
            rows = self._painted(block, marks, rows)
        while rows and not rows[0]:
            del rows[0]
        while rows and not rows[-1]:
            del rows[-1]
        return [self._line(row) for row in rows]

    def _line(self, row: Iterable[Segment]) -> Line:
        segments = [*(Segment.remove_color(row) if self._plain else row)]
        text = "".join(
            (part.style or Style()).render(part.text, color_system=self._system) for part in segments
        )
        return Line(text if self._can_show else text.translate(_ORNAMENTS), Segment.get_line_length(segments))

    def _painted(self, block: str, marks: Sequence[bool], rows: list[list[Segment]]) -> list[list[Segment]]:
        """Words of the lines are those of the block, some of whose signs are not shown: what is drafted is found so."""
        source = [*_WORDS.finditer(block)]
        places = [(at, match) for at, row in enumerate(rows) for match in _WORDS.finditer(_text(row))]
        drafted = [[False] * len(_text(row)) for row in rows]
        for there, here in _alike([match[0] for match in source], [match[0] for _, match in places]):
            word, (at, match) = source[there], places[here]
            drafted[at][match.start() : match.end()] = marks[word.start() : word.end()]
        return [self._paint(row, flags) for row, flags in zip(rows, drafted, strict=True)]

    def _paint(self, row: list[Segment], flags: Sequence[bool]) -> list[Segment]:
        characters = (
            Segment(character, (part.style or Style()) + self.paint if mark else part.style)
            for part, character, mark in _characters(row, flags)
        )
        return [*Segment.simplify(characters)]


def _alike(source: Sequence[str], shown: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Places of the same words in both, in order.

    In parts, a quarter of which is looked at again with the next one: all of a text that repeats itself takes minutes.
    """
    there = 0
    for here in range(0, len(shown), 3 * _PART // 4):
        parts = source[there : there + 2 * _PART], shown[here : here + _PART]
        found = difflib.SequenceMatcher(None, *parts, autojunk=False).get_matching_blocks()
        last = here + _PART >= len(shown)
        places = [(a + step, b + step) for a, b, size in found for step in range(size)]
        sure = [(a + there, b + here) for a, b in places if last or b < 3 * _PART // 4]
        yield from sure
        there = sure[-1][0] + 1 if sure else there
        if last:
            return


def _characters(row: list[Segment], flags: Sequence[bool]) -> Iterable[tuple[Segment, str, bool]]:
    marks = iter(flags)
    for part in row:
        for character in part.text:
            yield part, character, next(marks)


def _text(row: Iterable[Segment]) -> str:
    return "".join(part.text for part in row)


def _without_end(row: Iterable[Segment]) -> list[Segment]:
    """Without the blanks at the end, which would be copied too."""
    parts = [*row]
    while parts and not parts[-1].text.strip():
        parts.pop()
    if parts:
        parts[-1] = Segment(parts[-1].text.rstrip(), parts[-1].style)
    return parts


def _shows(encoding: str | None, text: str) -> bool:
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
