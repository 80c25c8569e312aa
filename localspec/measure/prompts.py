"""The prompts of a bench: built-in ones by scenario, or a file of the user's own."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from localspec.errors import InvalidRequest

TWO_FORMS = "A line is {scenario, user, system (optional)} or {question_id, category, turns}."


@dataclass(frozen=True)
class Prompt:
    """What a user says, one or several turns, after an optional system prompt."""

    scenario: str
    turns: tuple[str, ...]
    system: str = ""

    def messages(self, answers: Sequence[str]) -> list[dict[str, str]]:
        """The messages of the request of turn `len(answers)` (from 0), after the answers so far."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn, answer in zip(self.turns, answers, strict=False):
            messages.append({"role": "user", "content": turn})
            messages.append({"role": "assistant", "content": answer})
        return [*messages, {"role": "user", "content": self.turns[len(answers)]}]


def builtin_prompts() -> list[Prompt]:
    """The prompts that come with localspec, at least three of each scenario."""
    text = (files("localspec.measure") / "prompts.toml").read_text(encoding="utf-8")
    return [
        Prompt(scenario, tuple(turn.strip() for turn in entry["turns"]))
        for scenario, entries in tomllib.loads(text).items()
        for entry in entries
    ]


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a JSONL file in either form. Raises `InvalidRequest` naming line and field."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"The prompts file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The prompts file {path} is not UTF-8 at byte {error.start}.") from error
    # Not splitlines(): a JSON string may hold U+2028 and its like.
    lines = enumerate(text.split("\n"), start=1)
    prompts = [_Line(path, number, line).prompt() for number, line in lines if line.strip()]
    if not prompts:
        raise InvalidRequest(f"The prompts file {path} holds no prompt.", TWO_FORMS)
    return prompts


def choose(
    prompts: Iterable[Prompt], scenarios: Sequence[str] = (), limit: int | None = None
) -> list[Prompt]:
    """The prompts of these scenarios (all, where none is named), at most `limit` of each.

    Raises `InvalidRequest` naming a scenario without prompts.
    """
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.scenario, []).append(prompt)
    for name in scenarios:
        if name not in groups:
            raise InvalidRequest(f"There is no scenario {name!r}.", f"There are {', '.join(groups)}.")
    wanted = dict.fromkeys(scenarios) or groups
    return [prompt for name in wanted for prompt in groups[name][:limit]]


class _Line:
    """One line of a prompts file."""

    def __init__(self, path: Path, number: int, text: str) -> None:
        self._where = f"Line {number} of {path}"
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InvalidRequest(f"{self._where} is not JSON: {error}.", TWO_FORMS) from error
        if not isinstance(data, Mapping):
            raise InvalidRequest(f"{self._where} is no JSON object.", TWO_FORMS)
        self._data: Mapping[str, Any] = data

    def prompt(self) -> Prompt:
        if "turns" in self._data:
            return Prompt(self._text("category"), self._turns())
        system = self._text("system") if self._data.get("system") else ""
        return Prompt(self._text("scenario"), (self._text("user"),), system)

    def _turns(self) -> tuple[str, ...]:
        turns = self._data["turns"]
        if not isinstance(turns, list) or not turns or not all(map(_is_text, turns)):
            raise self._fault("turns", "is not a list of texts")
        return tuple(turns)

    def _text(self, field: str) -> str:
        if field not in self._data:
            raise self._fault(field, "is missing")
        value = self._data[field]
        if not _is_text(value):
            raise self._fault(field, "is not a text")
        return str(value)

    def _fault(self, field: str, what: str) -> InvalidRequest:
        return InvalidRequest(f"{self._where}: the field {field!r} {what}.", TWO_FORMS, field=field)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
