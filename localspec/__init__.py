"""localspec: run a quantized language model locally by speculative decoding, with the target's exact output."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.decoding.params import SamplingParams
    from localspec.errors import LocalspecError
    from localspec.llm import LLM
    from localspec.request import Chunk, Completion

__version__ = "0.1.0"
__all__ = ["LLM", "Chunk", "Completion", "LocalspecError", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "localspec.llm",
    "Chunk": "localspec.request",
    "Completion": "localspec.request",
    "LocalspecError": "localspec.errors",
    "SamplingParams": "localspec.decoding.params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
