"""Reads the JSON object of one tool call as its characters come."""

from __future__ import annotations

import json
from typing import Any

ARGUMENTS = ("arguments", "parameters")
"""What models call the arguments; the first is the usual name, the second that of Llama 3."""
OTHER_KEYS = ("name", "type", "id", "function")


class CallReader:
    """Takes `{"name": ..., "arguments": {...}}` in, character by character.

    done: the object is complete. raw: all that was read. strange: a key that a tool call does not have.
    With a `name` given, the object read is the arguments alone.
    """

    def __init__(self, name: str = "") -> None:
        self.raw = ""
        self.done = False
        self.strange = False
        self._members: dict[str, str] = {}
        self._key = ""
        self._token = ""  # of the key or value being read, at depth 1
        self._in_value = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._bare = bool(name)
        for character in f'{{"name": {json.dumps(name)}, "arguments": ' if name else "":
            self._read(character)

    def read(self, text: str) -> str:
        """Read up to the end of the object; returns what follows it."""
        for index, character in enumerate(text):
            if self.done:
                return text[index:]
            self.raw += character
            self._read(character)
            if self._bare and self._depth == 1 and self._token.strip():
                self._read("}")
        return ""

    @property
    def name(self) -> str | None:
        """The function's name, once it is known."""
        name = _parsed(self._members.get("name", ""))
        return name if isinstance(name, str) else None

    @property
    def has_arguments(self) -> bool:
        """Whether a key for the arguments was read."""
        return any(key in self._members for key in ARGUMENTS) or self._key in ARGUMENTS

    @property
    def arguments(self) -> str | None:
        """The JSON text of the arguments as far as it is known; None for what is no object.

        Some models write that text as a string: it is given out when it is whole.
        """
        text = self._argument_text()
        if text.startswith("{"):
            return text
        if not self.done:
            return ""
        value = _parsed(text) if text else None
        if isinstance(value, str):
            value = _parsed(value) if value.strip() else None
        if value is None and text not in ("", "null", '""'):
            return None
        return json.dumps(value or {}, ensure_ascii=False) if isinstance(value, dict | None) else None

    def _argument_text(self) -> str:
        for key in ARGUMENTS:
            if key in self._members:
                return self._members[key]
        if not self._in_value or self._key not in ARGUMENTS:
            return ""
        text = self._token.lstrip()
        return text.rstrip() if self._depth == 1 and not self._in_string else text

    def _read(self, character: str) -> None:
        if self._in_string:
            self._token += character
            self._end_of_string(character)
        elif self._depth == 1 and character in ":,}":
            self._between(character)
        else:
            if self._depth:
                self._token += character
            self._in_string = character == '"'
            self._depth += (character in "{[") - (character in "}]")

    def _end_of_string(self, character: str) -> None:
        self._in_string = self._escaped or character != '"'
        self._escaped = character == "\\" and not self._escaped

    def _between(self, character: str) -> None:
        """A character that ends a key or a value of the outermost object."""
        token, self._token = self._token.strip(), ""
        if character == ":" and not self._in_value:
            key = _parsed(token)
            self._key = key if isinstance(key, str) else ""
            self.strange = self.strange or self._key not in (*ARGUMENTS, *OTHER_KEYS)
            self._in_value = True
            return
        if self._in_value:
            self._members.setdefault(self._key, token)
        self._key, self._in_value = "", False
        self.done = character == "}"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
