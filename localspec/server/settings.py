"""How the server behaves, as given at its start."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.decoding.params import SamplingParams

MAX_BODY = 4 * 2**20
"""Bytes of one request: twice what a model can be given as one text."""


@dataclass(frozen=True)
class Settings:
    """name: the model's name for clients; names: others that are understood as well; any_model: and so is every other;
    any_model_option: how whoever starts the server asks for that, for the refusal of another name.

    api_key: required in `Authorization: Bearer` or `X-Api-Key`, unless None.
    cors: origins of web pages that may ask; "*" is all.
    queue: requests that may wait besides those that are answered. timeout: seconds for a request, waiting included.
    grace: seconds that running answers get when the server stops. max_body: bytes of one request.
    params, answering: what holds where a request says nothing (`answering`: other keyword arguments of `LLM.stream`).
    """

    name: str
    names: tuple[str, ...] = ()
    any_model: bool = False
    any_model_option: str = "any_model=True"
    api_key: str | None = None
    cors: tuple[str, ...] = ()
    queue: int = 8
    timeout: float | None = None
    grace: float = 5.0
    max_body: int = MAX_BODY
    params: SamplingParams = field(default_factory=SamplingParams)
    answering: dict[str, object] = field(default_factory=dict)
