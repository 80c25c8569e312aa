"""What a thinking model thinks, apart from what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from localspec.errors import TemplateError
from localspec.text.prompt import TOLD_OTHERWISE

KNOWN_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
"""Opening and closing tag of each family of models."""

_PROBE = [{"role": "user", "content": "x"}]


class Template(Protocol):
    """The model's chat template; source is its text, or None."""

    @property
    def source(self) -> str | None: ...

    def render(self, messages: list[dict[str, Any]], **options: Any) -> str: ...


@dataclass(frozen=True)
class ReasoningTags:
    """How a model marks its thoughts. opened: the prompt already holds the opening tag."""

    opening: str
    closing: str
    opened: bool = False


def reasoning_tags(template: Template, variables: Mapping[str, Any] | None = None) -> ReasoningTags | None:
    """The tags that a chat template knows, or None for a model that does not think.

    variables: those the prompt will be rendered with. A rendered prompt shows whether it opens the thoughts.
    """
    source = template.source or ""
    for opening, closing in KNOWN_TAGS:
        if closing in source:
            told = {name: value for name, value in (variables or {}).items() if name not in TOLD_OTHERWISE}
            return ReasoningTags(opening, closing, _ends_with(template, opening, told))
    return None


def _ends_with(template: Template, opening: str, variables: dict[str, Any]) -> bool:
    try:
        return template.render(_PROBE, **variables).rstrip().endswith(opening)
    except TemplateError:  # it wants other messages than these
        return False


class ReasoningSplitter:
    """Parts a stream of text, however it is cut, into thoughts and answer.

    Thoughts stand at the beginning only: a tag later on is text like any other. Blanks around the tags belong to
    neither side. Without `tags` everything is answer. thinking: whether what comes next is a thought.
    """

    def __init__(self, tags: ReasoningTags | None) -> None:
        self._tags = tags
        self._held = ""
        self.thinking = bool(tags and tags.opened)
        self._begun = False  # something of the side we are on was given out
        self._may_open = tags is not None

    def push(self, text: str) -> tuple[str, str]:
        """Thoughts and answer that became certain with `text`."""
        if self._tags is None:
            return "", text
        self._held += text
        if self._may_open and not self._read_opening(self._tags.opening):
            return "", ""
        thoughts = self._read_thoughts(self._tags.closing) if self.thinking else ""
        return thoughts, "" if self.thinking else self._read_answer()

    def finish(self) -> tuple[str, str]:
        """What was held back, when no more comes."""
        rest, self._held = self._held, ""
        if not self.thinking:
            return "", rest
        rest = rest.rstrip()
        return rest if self._begun else rest.lstrip(), ""

    def _read_opening(self, opening: str) -> bool:
        """Drop the opening tag where it stands; False while that cannot be told."""
        start = self._held.lstrip()
        if len(start) < len(opening) and opening.startswith(start):
            return False
        self._may_open = False
        if start.startswith(opening):
            self._held, self.thinking = start[len(opening) :], True
        elif not self.thinking:
            self._begun = True  # an answer without thoughts is given out as it came
        return True

    def _read_thoughts(self, closing: str) -> str:
        thoughts, closed, behind = self._held.partition(closing)
        if not self._begun:
            thoughts = thoughts.lstrip()
        shown = thoughts.rstrip() if closed else thoughts[: _certain(thoughts, closing)]
        self._held = behind if closed else thoughts[len(shown) :]
        self._begun = not closed and (self._begun or bool(shown))
        self.thinking = not closed
        return shown

    def _read_answer(self) -> str:
        text, self._held = self._held if self._begun else self._held.lstrip(), ""
        self._begun = self._begun or bool(text)
        return text


def _certain(text: str, closing: str) -> int:
    """Length of the part of `text` that cannot be blanks before the closing tag, or the beginning of that tag."""
    return len(text[: len(text) - held_back(text, closing)].rstrip())


def held_back(text: str, *tags: str) -> int:
    """Length of the longest end of `text` that one of `tags`, not yet whole, may begin with."""
    longest = max(map(len, tags), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(tag.startswith(text[-length:]) for tag in tags):
            return length
    return 0
