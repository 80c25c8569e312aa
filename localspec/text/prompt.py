"""Messages or text to prompt ids."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from localspec.checks import shown
from localspec.errors import InvalidRequest, TemplateError
from localspec.text.messages import (
    ASSISTANT,
    checked_messages,
    checked_text,
    checked_tools,
    checked_variables,
    with_arguments,
)


class Literals:
    """A set of texts to look for. At one place the longest counts, so that one which contains another is whole.

    Not one pattern with thousands of branches: each place where a literal might begin would try them all.
    """

    def __init__(self, literals: frozenset[str]) -> None:
        self._literals = literals - {""}
        self._width = min(map(len, self._literals), default=0)
        lengths: dict[str, set[int]] = {}
        for literal in self._literals:
            lengths.setdefault(literal[: self._width], set()).add(len(literal))
        self._lengths = {beginning: sorted(found, reverse=True) for beginning, found in lengths.items()}
        self._starts = self._start_pattern()

    def _start_pattern(self) -> re.Pattern[str] | None:
        """A place worth looking at: the first two characters of some literal, as far as all have two."""
        if not self._literals:
            return None
        first, *second = (_any_of({text[at] for text in self._literals}) for at in range(min(self._width, 2)))
        return re.compile(first + "".join(f"(?={letters})" for letters in second))

    def replace(self, text: str, replacement: Callable[[str], str]) -> str:
        """`text` with `replacement(literal)` in place of every literal, from left to right."""
        if self._starts is None:
            return text
        parts, done = [], 0
        for match in self._starts.finditer(text):
            start = match.start()
            literal = self._at(text, start) if start >= done else ""
            if literal:
                parts += [text[done:start], replacement(literal)]
                done = start + len(literal)
        return "".join([*parts, text[done:]])

    def _at(self, text: str, start: int) -> str:
        """The longest literal that begins there, or ""."""
        for length in self._lengths.get(text[start : start + self._width], ()):
            candidate = text[start : start + length]
            if candidate in self._literals:
                return candidate
        return ""


def _any_of(letters: set[str]) -> str:
    return f"[{''.join(map(re.escape, sorted(letters)))}]"


@lru_cache(maxsize=8)
def literals_of(vocabulary: frozenset[str]) -> Literals:
    """The literals of a vocabulary, made once: a set knows its own hash."""
    return Literals(vocabulary)


ENDINGS = ("answer", "message", "nothing")
"""How a prompt may end: with the opening of an answer; inside the last message, whose text the model continues; or
behind the last message, as the template ends it."""

TOLD_OTHERWISE = ("self", "messages", "tools", "add_generation_prompt")
"""Told to a template otherwise."""


class Vocabulary(Protocol):
    """The target's tokenizer.

    control_literals: texts that `parse_special` turns into control tokens. bos_text: text of the BOS token,
    or "". add_bos: whether the model wants a BOS in front of a prompt.
    """

    @property
    def control_literals(self) -> frozenset[str]: ...

    @property
    def bos_text(self) -> str: ...

    @property
    def add_bos(self) -> bool: ...

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]: ...


class Template(Protocol):
    """The model's chat template."""

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str: ...


def render_prompt(
    vocab: Vocabulary,
    template: Template,
    messages: Sequence[Mapping[str, object]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    beginning: str = "",
    variables: Mapping[str, Any] | None = None,
    ending: str = "answer",
) -> list[int]:
    """Prompt ids of a conversation.

    tools: functions the model may call, as OpenAI writes them. beginning: the answer's first text, control tokens
    included; it belongs to the prompt. variables: for the template, such as `enable_thinking`. ending: of `ENDINGS`.

    The rendered template is tokenized with special tokens parsed, except that texts of control tokens inside
    a message stay text: they are hidden from the template behind placeholders and tokenized on their own. A
    BOS is added if the model wants one and the template wrote none.

    Raises InvalidRequest for messages that are none, TemplateError as the template does.
    """
    hidden = Hidden(literals_of(vocab.control_literals))
    shielded = [hidden.hide_in(message) for message in checked_messages(messages)]
    tools, variables = checked_tools(tools), checked_variables(variables)
    beginning = checked_text(beginning, "The beginning of the answer", name="beginning")
    if ending not in ENDINGS:
        raise InvalidRequest(
            f"ending is {shown(ending)}.", f"Use one of {', '.join(ENDINGS)}.", name="ending"
        )
    try:
        told = {
            name: hidden.hide_in(value) for name, value in variables.items() if name not in TOLD_OTHERWISE
        }
        shielded_tools = hidden.hide_in(tools)
    except RecursionError:
        raise InvalidRequest(
            "The tools or template variables are nested too deeply, or hold themselves.",
            "Give what can be written as JSON.",
            name="tools" if tools else "template_variables",
        ) from None
    if ending == "message":
        shielded[-1] = _open(shielded[-1], hidden.mark)
    rendered = _rendered(
        template,
        shielded,
        tools=shielded_tools or None,
        add_generation_prompt=ending == "answer",
        **told,
    )
    if ending == "message":
        rendered = _up_to(rendered, hidden.mark)
    return prompt_ids(vocab, hidden.split(rendered + beginning))


def _rendered(template: Template, messages: list[dict[str, Any]], /, **options: Any) -> str:
    """What the template makes of checked messages.

    Most templates take the arguments of old calls as objects or as text. Where one fails over them, it gets all of
    them as objects (some go through the members), or all as text (some join it with other text).
    """
    try:
        return template.render(messages, **options)
    except TemplateError:
        for as_text in (False, True):
            others = with_arguments(messages, as_text=as_text)
            if others != messages:
                with contextlib.suppress(TemplateError):
                    return template.render(others, **options)
        raise


def _open(message: dict[str, Any], mark: str) -> dict[str, Any]:
    """The last message with a mark behind its text. Raises InvalidRequest for one that cannot be continued."""
    if message["role"] != ASSISTANT or "tool_calls" in message:
        what = (
            "calls tools" if message["role"] == ASSISTANT else f"is one of the role {message['role']!r:.40}"
        )
        raise InvalidRequest(
            f"The last message {what}, so there is no answer to continue.",
            "Let an assistant's text be the last message.",
            name="continue_final_message",
        )
    return {**message, "content": message["content"] + mark}


def _up_to(rendered: str, mark: str) -> str:
    before, *behind = rendered.split(mark)
    if len(behind) != 1:
        raise InvalidRequest(
            "The chat template does not write the last message as it is, so it cannot be continued.",
            "Ask for a new answer instead.",
            name="continue_final_message",
        )
    return before


def prompt_ids(vocab: Vocabulary, parts: Sequence[str]) -> list[int]:
    """Ids of a rendered template as `Hidden.split` takes it apart, with a BOS if it wants one."""
    return _not_empty(tokenize_parts(vocab, parts, add_bos=_wants_bos(vocab, parts[0])))


def tokenize_parts(vocab: Vocabulary, parts: Sequence[str], *, add_bos: bool = False) -> list[int]:
    """Ids of template text with the literals in it as plain text; `parts` are those of `Hidden.split`."""
    first, *rest = parts
    ids = vocab.tokenize(first, parse_special=True, add_bos=add_bos) if first or add_bos else []
    plain = {literal: _as_plain_text(vocab, literal) for literal in set(rest[::2])}
    for literal, text in zip(rest[::2], rest[1::2], strict=True):
        ids += plain[literal]
        ids += vocab.tokenize(text, parse_special=True) if text else []
    return ids


def text_prompt(vocab: Vocabulary, text: str) -> list[int]:
    """Prompt ids of a plain text to be continued.

    Whoever gives a raw prompt writes the control tokens too, so they are parsed, as llama.cpp's completion
    does. A BOS is added if the model wants one and the text does not begin with it. Raises InvalidRequest.
    """
    text = checked_text(text, "The prompt", name="prompt")
    return _not_empty(vocab.tokenize(text, parse_special=True, add_bos=_wants_bos(vocab, text)))


class Hidden:
    """Control-token texts, swapped for placeholders that no one can guess and no usual filter alters.

    mark: another such placeholder, to find a place again.
    """

    def __init__(self, literals: Literals) -> None:
        self._literals = literals
        self._nonce = f"{secrets.randbits(128):039d}"
        self._texts: list[str] = []
        self.mark = f"\ue000{self._nonce}\ue001"

    def hide(self, text: str) -> str:
        """`text` with placeholders."""
        return self._literals.replace(text, self._placeholder)

    def hide_in(self, value: Any) -> Any:
        """The same for every text in lists and dicts."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide_in(key): self.hide_in(item) for key, item in value.items()}
        return [self.hide_in(item) for item in value] if isinstance(value, list | tuple) else value

    def _placeholder(self, literal: str) -> str:
        self._texts.append(literal)
        return f"\ue000{self._nonce}{len(self._texts) - 1}\ue001"

    def split(self, rendered: str) -> list[str]:
        """text, literal, text, literal, ..., text."""
        parts = re.split(f"\ue000{self._nonce}([0-9]+)\ue001", rendered)
        return [self._texts[int(part)] if index % 2 else part for index, part in enumerate(parts)]

    def restore(self, rendered: str) -> str:
        """The text with the literals in their places again."""
        return "".join(self.split(rendered))


def _as_plain_text(vocab: Vocabulary, literal: str) -> list[int]:
    ids = vocab.tokenize(literal, parse_special=False)
    if set(vocab.tokenize(literal, parse_special=True)).isdisjoint(ids):
        return ids
    # SentencePiece joins the characters to the control token even when told not to parse it.
    return [token for character in literal for token in vocab.tokenize(character, parse_special=False)]


def _wants_bos(vocab: Vocabulary, text: str) -> bool:
    return vocab.add_bos and not (vocab.bos_text and text.startswith(vocab.bos_text))


def _not_empty(ids: list[int]) -> list[int]:
    if not ids:
        raise InvalidRequest("The prompt is empty.", "Give at least one character.", name="prompt")
    return ids
