"""The chat template that a GGUF file brings along."""

from __future__ import annotations

from typing import Any

from localspec.errors import TemplateError


class ChatTemplate:
    """Turns messages into the prompt text of one model.

    metadata_template: the Jinja text of the file, or None. bos, eos: texts of those tokens, "" for none.
    name: what to call the model in an error.

    Templates come from strangers: llama-cpp-python's formatter runs them in Jinja's immutable sandbox,
    without files, attributes of Python objects, or any way to change the messages.
    """

    def __init__(self, metadata_template: str | None, *, bos: str, eos: str, name: str) -> None:
        self.name = name
        self._source = metadata_template
        self._bos = bos
        self._eos = eos
        self._formatters: dict[bool, Any] = {}

    def render(self, messages: list[dict[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The prompt text, ending with the opening of an answer if `add_generation_prompt`.

        Raises TemplateError when the file has no template, when the template is broken, and with the
        template's own sentence when it rejects these messages.
        """
        formatter = self._formatters.get(add_generation_prompt)
        if formatter is None:
            formatter = self._compile(add_generation_prompt)
            self._formatters[add_generation_prompt] = formatter
        try:
            return str(formatter(messages=messages).prompt)
        except ValueError as error:  # what the formatter's raise_exception raises
            raise TemplateError(
                f"The chat template of {self.name} rejects these messages: {_one_line(error)}.",
                "Change their roles or order, or give a plain prompt.",
            ) from error
        except Exception as error:
            raise self._broken(error) from error

    def _compile(self, add_generation_prompt: bool) -> Any:
        if self._source is None:
            raise TemplateError(
                f"{self.name} has no chat template in its file.", "Give a plain prompt instead of messages."
            )
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        try:
            return Jinja2ChatFormatter(
                self._source,
                eos_token=self._eos,
                bos_token=self._bos,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> TemplateError:
        return TemplateError(
            f"The chat template of {self.name} does not work: {type(error).__name__}: {_one_line(error)}.",
            "Give a plain prompt instead of messages, or use another file of this model.",
        )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:300]
