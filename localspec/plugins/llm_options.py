"""The options of a model in the `llm` tool."""

from __future__ import annotations

from typing import Annotated, Any

import llm
from pydantic import BeforeValidator, Field

_LOADING = ("n_ctx", "threads", "gpu_layers", "library", "head", "strict")
"""Those that say how the models are loaded; `LoadOptions` has them under the same names."""
_FOR_TEMPLATE = ("enable_thinking",)


def _number(value: object) -> object:
    """The tool hands all values over as texts."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


NumberOrWord = Annotated[int | str, BeforeValidator(_number)]


class AnswerSettings(llm.Options):
    """Named as in localspec's Python API. What is not given is as it is there; a change of those that say how the
    models are loaded loads them again.
    """

    temperature: float | None = Field(None, description="0 always takes the likeliest token (0.8)")
    max_tokens: int | None = Field(None, description="Longest answer in tokens (until the context is full)")
    seed: int | None = Field(None, description="The same seed gives the same text with any draft")
    top_k: int | None = Field(None, description="Only so many of the likeliest tokens; 0: all (40)")
    top_p: float | None = Field(
        None, description="Only the likeliest tokens of this probability in all (0.95)"
    )
    min_p: float | None = Field(None, description="Only tokens this probable, against the likeliest (0.05)")
    typical_p: float | None = Field(
        None, description="Only tokens about as probable as is typical; 1: all (1)"
    )
    repeat_penalty: float | None = Field(None, description="Above 1: tokens used before are less likely (1)")
    frequency_penalty: float | None = Field(None, description="Above 0: less likely by each use (0)")
    presence_penalty: float | None = Field(None, description="Above 0: less likely once used (0)")
    stop: str | list[str] | None = Field(
        None, description="A text that ends the answer; in Python, or several"
    )
    grammar: str | None = Field(None, description="A GBNF grammar that the answer must match")
    prediction: str | None = Field(
        None, description="A text that the answer will resemble: drafts come from it"
    )
    draft_tokens: NumberOrWord | None = Field(
        None, description="Tokens to draft in each round: auto, off or a number"
    )
    verify: str | None = Field(None, description="Accept rule: auto, block, rejection or coupled")
    enable_thinking: bool | None = Field(
        None, description="Whether a model that can think does, where that is a choice"
    )
    n_ctx: int | None = Field(None, description="Loading: tokens of context (4096)")
    threads: int | None = Field(None, description="Loading: CPU threads")
    gpu_layers: NumberOrWord | None = Field(None, description="Loading: auto, all or a number")
    library: str | None = Field(None, description="Loading: what computes: auto, llama or ik")
    head: str | None = Field(
        None, description="Loading: whether the model's own prediction layers draft: auto, on or off"
    )
    strict: bool | None = Field(
        None, description="Loading: the same bits with and without a draft, which costs speed"
    )

    def loading(self) -> dict[str, Any]:
        """Keyword arguments of `LLM.from_pair`."""
        return {name: value for name, value in self._given().items() if name in _LOADING}

    def answering(self) -> dict[str, Any]:
        """Keyword arguments of `LLM.stream`."""
        given = self._given()
        return {name: value for name, value in given.items() if name not in (*_LOADING, *_FOR_TEMPLATE)}

    def template_variables(self) -> dict[str, Any]:
        """What the chat template is told besides."""
        return {name: value for name, value in self._given().items() if name in _FOR_TEMPLATE}

    def _given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)
