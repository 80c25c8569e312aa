"""Reads a tool call in Qwen3-Coder's tags as its characters come."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

BEGINNING = "<function="
END = "</function>"
PARAMETER_END = "</parameter>"
_NAME = re.compile(r"\s*<function=([^<>\s]{1,64})>")
_HALF_NAME = re.compile(r"\s*<function=[^<>\s]{0,64}")
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,256})>")


class XmlCallReader:
    """Takes `<function=NAME>`, any number of `<parameter=KEY>`, value, `</parameter>`, and `</function>` in.

    The interface is `CallReader`'s. names: the functions there are. parameters: by function, the JSON schema of its
    arguments: a value is text where the schema allows it or says nothing, else what it is as JSON. `arguments` grows by
    whole values.
    """

    strange = False

    def __init__(self, names: Collection[str], parameters: Mapping[str, Any]) -> None:
        self.raw = ""
        self.done = False
        self.name: str | None = None
        self._names, self._parameters = names, parameters
        self._held = ""
        self._members: list[str] = []

    def read(self, text: str) -> str:
        """Read up to the end of the call; returns what follows it."""
        self.raw += text
        self._held += text
        while not self.done and self._step():
            pass
        if not self.done:
            return ""
        rest, self._held = self._held, ""
        self.raw = self.raw[: len(self.raw) - len(rest)]
        return rest

    @property
    def has_arguments(self) -> bool:
        """Whether arguments may come: its tags say that it is a call."""
        return self.name is not None

    @property
    def arguments(self) -> str | None:
        """The JSON text of the arguments as far as it is known; None for what is no call."""
        if self.name is None:
            return None
        return "{" + ", ".join(self._members) + ("}" if self.done else "")

    def _step(self) -> bool:
        return self._read_name() if self.name is None else self._read_parameter()

    def _read_name(self) -> bool:
        found = _NAME.match(self._held)
        if found is None and _HALF_NAME.fullmatch(self._held):
            return False
        if found is None or found[1] not in self._names:
            # No call. What follows the tag may hold one, and is not read here.
            self.done, self._held = True, self._held.partition(BEGINNING)[2]
            return False
        self.name, self._held = found[1], self._held[found.end() :]
        return True

    def _read_parameter(self) -> bool:
        """Read one parameter; what stands between parameters means nothing."""
        end, found = self._held.find(END), _PARAMETER.search(self._held)
        if found is None or 0 <= end < found.start():
            self.done = end >= 0
            self._held = self._held[end + len(END) :] if self.done else self._held
            return False
        value, closing, rest = self._held[found.end() :].partition(PARAMETER_END)
        if not closing:
            return False
        key = found[1].strip()
        member = json.dumps(self._value(key, value), ensure_ascii=False)
        self._members.append(f"{json.dumps(key, ensure_ascii=False)}: {member}")
        self._held = rest
        return True

    def _value(self, key: str, text: str) -> Any:
        text = text.removeprefix("\n").removesuffix("\n")
        if _may_be_text(self._parameters.get(self.name or ""), key):
            return text
        try:
            return json.loads(text)
        except ValueError:
            return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def _may_be_text(schema: Any, key: str) -> bool:
    """Whether that argument's schema allows a text, or says nothing."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    found = properties.get(key) if isinstance(properties, Mapping) else None
    if not isinstance(found, Mapping):
        return True
    kinds = found.get("type")
    if kinds is None:
        allowed = found.get("enum")
        return not isinstance(allowed, list) or all(isinstance(value, str) for value in allowed)
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
