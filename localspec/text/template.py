"""The chat template that a GGUF file brings along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from localspec.errors import TemplateError

if TYPE_CHECKING:
    from jinja2 import Template

_OWN = ("messages", "eos_token", "bos_token", "raise_exception", "add_generation_prompt", "strftime_now")
"""Set here: a caller's variables of these names are passed over."""
_OTHER = "Give a plain prompt instead of messages, or use another file of this model."
_SHORTEN = "Give fewer or shorter messages, or a plain prompt."
_LONG = 1 << 16
"""Bytes of a conversation whose length may be why a template does too much."""


class ChatTemplate:
    """Turns messages into the prompt text of one model.

    metadata_template: the Jinja text of the file, or None. bos, eos: texts of those tokens, "" for none.
    name: what to call the model in an error.

    Templates come from strangers: they run in Jinja's immutable sandbox, without files, attributes of Python objects,
    or any way to change the messages, and within bounds on memory, output, steps and time (`sandbox.py`,
    `template_allowance.py`).
    """

    def __init__(self, metadata_template: str | None, *, bos: str, eos: str, name: str) -> None:
        self.name = name
        self._source = metadata_template
        self._bos = bos
        self._eos = eos

    @property
    def source(self) -> str | None:
        """The Jinja text, or None."""
        return self._source

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names that the template asks for: `tools`, `enable_thinking`, ... Empty for one that cannot be read."""
        from jinja2 import meta

        try:
            parsed = self._compiled.environment.parse(self._source or "")
        except TemplateError:
            return frozenset()
        return frozenset(meta.find_undeclared_variables(parsed))

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt text, ending with the opening of an answer if `add_generation_prompt`.

        tools: functions the model may call, as OpenAI writes them. variables: others that the template asks for.
        Raises TemplateError when the file has no template, when the template is broken or knows no tools, and with
        the template's own sentence when it rejects these messages.
        """
        if tools and self._source is not None and "tools" not in self.variables:
            raise TemplateError(
                f"The chat template of {self.name} knows no tools.",
                "Leave tools out, or use a model that was trained to call them.",
                name="tools",
            )
        template = self._compiled
        from localspec.text.template_allowance import TooMuch, allowance

        told = {
            **dict.fromkeys(("functions", "function_call", "tool_choice")),  # as llama-cpp-python does
            **{name: value for name, value in variables.items() if name not in _OWN},
            "messages": messages,
            "tools": list(tools) if tools else None,
            "bos_token": self._bos,
            "eos_token": self._eos,
            "raise_exception": _reject,
            "add_generation_prompt": add_generation_prompt,
        }
        given = 0
        try:
            with allowance(told) as allowed:
                given = allowed.given
                return template.render(told)
        except _Rejected as error:
            raise TemplateError(
                f"The chat template of {self.name} rejects these messages: {_one_line(error)}.",
                "Change their roles or order, or give a plain prompt.",
            ) from error
        except TooMuch as error:
            raise self._broken(error, _SHORTEN if given > _LONG else _OTHER) from error
        except Exception as error:
            raise self._broken(error) from error

    @cached_property
    def _compiled(self) -> Template:
        if self._source is None:
            raise TemplateError(
                f"{self.name} has no chat template in its file.", "Give a plain prompt instead of messages."
            )
        from localspec.text.sandbox import Sandbox, checked_source
        from localspec.text.template_allowance import allowance

        try:
            with allowance():
                return Sandbox().from_string(checked_source(self._source))
        except Exception as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception, remedy: str = _OTHER) -> TemplateError:
        return TemplateError(
            f"The chat template of {self.name} does not work: {type(error).__name__}: {_one_line(error)}.",
            remedy,
        )


class _Rejected(Exception):
    """What `raise_exception` raises; an error of Python's own is no word of the template."""


def _reject(message: str) -> None:
    raise _Rejected(message)


def _one_line(error: Exception) -> str:
    printable = str(error).encode("utf-8", "replace").decode()
    return " ".join(printable.split()).rstrip(".")[:300]
