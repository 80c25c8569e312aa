"""Tool calls in the text of an answer, found while it streams."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from localspec.text.call_reader import CallReader
from localspec.text.reasoning import held_back
from localspec.text.xml_call_reader import BEGINNING, XmlCallReader

OPENERS = ("<tool_call>", "<tools>", "[TOOL_CALLS]", "<|python_tag|>")
"""What models write in front of a call: Qwen and Hermes, small Qwens, Mistral, Llama 3."""
_BEGINNINGS = (*OPENERS, BEGINNING)
"""Qwen3-Coder leaves its opener out now and then."""
CLOSERS = ("</tool_call>", "</tools>", "```")
FENCES = ("```json", "```")
"""Small models put a bare call into a code block."""
_FIRST = (*FENCES, *_BEGINNINGS)
_NEXT = (*CLOSERS, *_BEGINNINGS)
_NAMED = re.compile(r"\s*([\w.-]{1,64})(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
"""Newer Mistrals: the name, then the arguments alone."""
_HALF_NAMED = re.compile(r"\s*[\w.-]{0,64}[\w\[\]]{0,64}\s*")
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class CallDelta:
    """A piece of a call. index: which call of the answer, from 0. id and name stand in a call's first piece only.

    The `arguments` of all pieces joined are JSON text, as the model wrote it.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


Piece = str | CallDelta
Reader = CallReader | XmlCallReader


def new_call_id() -> str:
    """Nine letters and digits: the templates of Mistral refuse other ids."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


class ToolCallParser:
    """Parts a stream of text, however it is cut, into text and calls.

    names: the functions that may be called; what names another is text. parallel: whether more than the first call
    counts. parameters: by function, the JSON schema of its arguments, by which Qwen3-Coder's values get their types.

    Understood are a JSON object with `name` and `arguments` (or `parameters`) behind one of `OPENERS` or at the very
    beginning, bare or in a code block; several of them in a list, or one after the other; Mistral's `name[ARGS]{}`;
    and Qwen3-Coder's `<function=name>`. Blanks around calls are dropped.
    """

    def __init__(
        self,
        names: Collection[str],
        *,
        parallel: bool = True,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_calls = 0
        self._names = frozenset(names)
        self._most = None if parallel else 1
        self._state = self._at_start
        self._held = ""
        self._skipped = ""  # read since the text before a call: shown, if it is none
        self._marked = False
        self._parameters = parameters or {}
        self._reader: Reader = CallReader()
        self._sent: int | None = None  # characters of the current call's arguments; None: not announced
        self._out: list[Piece] = []
        self._any_text = False

    def push(self, text: str) -> list[Piece]:
        """What became certain with `text`: pieces of text, and of calls."""
        return self._run(text, last=False)

    def finish(self) -> list[Piece]:
        """What was held back, when no more comes."""
        return self._run("", last=True)

    def _run(self, text: str, *, last: bool) -> list[Piece]:
        self._held += text
        while self._state(last):
            pass
        out, self._out = self._out, []
        return out

    # Each state takes from the front of `_held` what it understands, and says whether to go on.

    def _at_start(self, last: bool) -> bool:
        start = self._held.lstrip()
        if not last and any(tag.startswith(start) for tag in _FIRST):
            return False
        inside = start.removeprefix("```").removeprefix("json").lstrip() if start.startswith("```") else start
        if not inside and not last:
            return False
        is_call = inside.startswith(("{", "[")) and not inside.startswith(OPENERS)
        if is_call:
            self._skip(len(self._held) - len(inside))
        self._marked, self._state = False, self._expecting if is_call else self._in_text
        return True

    def _in_text(self, last: bool) -> bool:
        found = [(at, tag) for tag in _BEGINNINGS if (at := self._held.find(tag)) >= 0]
        if not found:
            text = (
                self._held
                if last
                else self._held[: len(self._held) - held_back(self._held, *_BEGINNINGS)].rstrip()
            )
            self._give(text)
            self._held = self._held[len(text) :]
            return False
        at, tag = min(found)
        text = self._held[:at].rstrip()
        self._give(text)
        self._held = self._held[len(text) :]
        self._skip(at - len(text) + (0 if tag == BEGINNING else len(tag)))
        self._marked, self._state = True, self._expecting
        return True

    def _expecting(self, last: bool) -> bool:
        """Behind an opener, or at a bracket."""
        inside = re.sub(r"^\s*\[?\s*", "", self._held)
        named = _NAMED.match(self._held) if self._marked else None
        if inside.startswith("{"):
            self._skip(len(self._held) - len(inside))
            self._begin(CallReader())
        elif self._marked and inside.startswith(BEGINNING):
            self._skip(len(self._held) - len(inside))
            self._begin(XmlCallReader(self._names, self._parameters))
        elif named and named[1] in self._names:
            self._skip(named.end())
            self._begin(CallReader(named[1]))
        elif not last and (not inside or (self._marked and self._may_begin(inside))):
            return False
        else:
            self._give_up()
        return True

    def _may_begin(self, inside: str) -> bool:
        """Whether what is held can still become the beginning of a call."""
        return bool(_HALF_NAMED.fullmatch(self._held)) or BEGINNING.startswith(inside)

    def _in_call(self, last: bool) -> bool:
        reader = self._reader
        self._held = reader.read(self._held)
        if self._sent is None and (self._is_no_call(reader) or (last and not reader.done)):
            self._give_up()
            return True
        self._announce(reader)
        if reader.done:
            self._skipped, self._state = "", self._between
        return reader.done

    def _between(self, last: bool) -> bool:
        """Behind a call: separators, the closing tag, another call, or text again."""
        self._held = self._held.lstrip(" \t\r\n,;]")
        closer = next((tag for tag in CLOSERS if self._held.startswith(tag)), "")
        self._held = self._held[len(closer) :]
        if closer:
            return True
        if not last and any(tag.startswith(self._held) for tag in _NEXT if tag != self._held):
            return False
        if self._held.startswith("{"):
            self._begin(CallReader())
        else:
            is_text = self._held and not self._held.startswith(_BEGINNINGS)
            self._give("\n" if is_text and self._any_text else "")
            self._state = self._in_text
        return True

    def _is_no_call(self, reader: Reader) -> bool:
        if reader.strange and not self._marked:
            return True
        if reader.name is not None and reader.name not in self._names:
            return True
        if not reader.done:
            return False
        return reader.name is None or reader.arguments is None or not (self._marked or reader.has_arguments)

    def _announce(self, reader: Reader) -> None:
        """Give out what is new of the current call."""
        arguments = reader.arguments or ""
        if reader.name is None or not arguments or (self.num_calls == self._most and self._sent is None):
            return
        if self._sent is None:
            self._sent = 0
            self._out.append(CallDelta(self.num_calls, new_call_id(), reader.name))
            self.num_calls += 1
        if len(arguments) > self._sent:
            self._out.append(CallDelta(self.num_calls - 1, arguments=arguments[self._sent :]))
            self._sent = len(arguments)

    def _begin(self, reader: Reader) -> None:
        self._reader, self._sent, self._state = reader, None, self._in_call

    def _give_up(self) -> None:
        """It was no call: show all that was read of it."""
        raw = self._reader.raw if self._state == self._in_call else ""
        self._give(self._skipped + raw)
        self._skipped, self._state = "", self._in_text

    def _skip(self, length: int) -> None:
        self._skipped, self._held = self._skipped + self._held[:length], self._held[length:]

    def _give(self, text: str) -> None:
        if text:
            self._any_text = True
            self._out.append(text)
