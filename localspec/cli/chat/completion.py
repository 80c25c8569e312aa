"""What Tab offers: commands, and what may stand behind them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from localspec.checks import WHEN_FULL
from localspec.cli.chat import settings
from localspec.cli.chat.commands import ALIASES, COMMANDS
from localspec.errors import LocalspecError
from localspec.text.controls import printable

if TYPE_CHECKING:
    from localspec.cli.chat.kept import Kept

_LINE = re.compile(r"/(\S*)(\s+)?(.*)", re.DOTALL)


class ChatCompleter(Completer):
    """For lines that begin with "/"; a question is left alone. kept: whose names /load and /save take."""

    def __init__(self, kept: Kept | None = None) -> None:
        self._kept = kept
        self._paths = PathCompleter(expanduser=True)
        models = PathCompleter(
            expanduser=True, file_filter=lambda path: Path(path).is_dir() or path.endswith(".gguf")
        )
        self._ways: dict[str, Callable[[str], Iterator[Completion]]] = {
            "read": lambda typed: self._files(self._paths, typed),
            "save": lambda typed: self._offered(self._saved(), typed),
            "load": lambda typed: self._named_or_file(self._saved(), self._paths, typed),
            "model": lambda typed: self._named_or_file(_pairs(), models, typed),
            "full": lambda typed: self._offered(WHEN_FULL, typed),
            "draft": lambda typed: self._offered(("auto", "off"), typed),
            "copy": lambda typed: self._offered(("code",), typed),
            "edit": lambda typed: self._offered(("new",), typed),
            "set": self._options,
        }

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """As prompt_toolkit asks for them, but for names with control characters: it would print them as they are."""
        for completion in self._found(document):
            if completion.display_text == printable(completion.display_text):
                yield completion

    def _found(self, document: Document) -> Iterator[Completion]:
        found = _LINE.fullmatch(document.text_before_cursor)
        if found is None:
            return
        name, gap, typed = found[1].lower(), found[2], found[3]
        if gap is None:
            yield from self._offered(COMMANDS, name)
        elif (way := self._ways.get(ALIASES.get(name, name))) is not None:
            yield from way(typed)

    def _offered(self, words: Iterable[str], typed: str) -> Iterator[Completion]:
        for word in words:
            if word.startswith(typed):
                yield Completion(word, start_position=-len(typed))

    def _files(self, paths: PathCompleter, typed: str) -> Iterator[Completion]:
        yield from paths.get_completions(Document(typed), CompleteEvent())

    def _named_or_file(self, names: Iterable[str], paths: PathCompleter, typed: str) -> Iterator[Completion]:
        if "/" not in typed and "\\" not in typed:
            yield from self._offered(names, typed)
        if typed.startswith((".", "/", "~")) or "/" in typed:
            yield from self._files(paths, typed)

    def _options(self, typed: str) -> Iterator[Completion]:
        name, gap, value = typed.partition(" ")
        if not gap:
            yield from self._offered(settings.names(), name)
        elif name in (*settings.LOOKS, "ignore-eos"):
            yield from self._offered(("on", "off"), value)

    def _saved(self) -> list[str]:
        return [entry.name for entry in self._kept.entries()] if self._kept is not None else []


def _pairs() -> list[str]:
    """Pairs of the catalogue whose names can be given to /model."""
    from localspec.pairs.catalogue import pairs

    try:
        return sorted(pair.name for pair in pairs())
    except LocalspecError:  # a pair file that cannot be read is reported where one is asked for
        return []
