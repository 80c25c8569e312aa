"""Reading the documentation: its files, code blocks, commands, links and headings."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
COMMANDS = ROOT / "docs" / "commands.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of code. page: its file's name. number: of its line. language: as written behind the fence."""

    page: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.number}"

    def commands(self, program: str) -> Iterator[str]:
        """What calls `program`, each with its quoted or continued lines."""
        pending = ""
        for line in self.text.splitlines():
            if not pending and not line.startswith(program + " "):
                continue
            pending = f"{pending}\n{line}" if pending else line
            if _is_whole(pending):
                yield pending
                pending = ""
        assert not pending, f"{self}: a quote is not closed"


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:  # a quote or an escape is open
        return False
    return True


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(text: str, page: str) -> list[Block]:
    """All code blocks of a page."""
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in _BLOCK.finditer(text)
    ]


def all_blocks() -> list[Block]:
    """Those of every page, the front page first."""
    return [block for page in PAGES for block in blocks(read(page), str(page.relative_to(ROOT)))]


def commands(program: str) -> list[str]:
    """What the code blocks of all pages call by that name."""
    return [command for block in all_blocks() for command in block.commands(program)]


def prose(text: str) -> str:
    """A page without its code blocks."""
    return _BLOCK.sub("", text)


def anchors(text: str) -> set[str]:
    """The names by which a page's headings can be linked to, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in _HEADING.findall(prose(text)):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def dead_links(page: Path, text: str) -> list[str]:
    """Relative links of a page that lead nowhere: no such file, or no such heading."""
    dead = []
    for link in _LINK.findall(prose(text)):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        own = text if target == page else None
        if not target.exists() or (anchor and anchor not in anchors(own or read(target))):
            dead.append(link)
    return dead


def deep_paths(text: str, public: set[str]) -> list[str]:
    """Dotted names that begin with `localspec.` and are neither public nor part of one."""
    found = re.findall(r"(?<![\w./-])localspec(?:\.\w+)+", text)
    return [name for name in found if name not in public]
