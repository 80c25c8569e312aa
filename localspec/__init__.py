"""localspec: run a quantized language model locally by speculative decoding, with the target's exact output."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.answer_stream import AnswerStream
    from localspec.background import Loading, LoadProgress
    from localspec.conversation import Conversation
    from localspec.decoding.params import SamplingParams
    from localspec.errors import LoadCancelled, LocalspecError
    from localspec.footprint import memory_needed
    from localspec.llama.memory import MemoryEstimate
    from localspec.llm import LLM
    from localspec.pulling import pull
    from localspec.request import AnswerOptions, Chunk, Completion

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AnswerOptions",
    "AnswerStream",
    "Chunk",
    "Completion",
    "Conversation",
    "LoadCancelled",
    "LoadProgress",
    "Loading",
    "LocalspecError",
    "MemoryEstimate",
    "SamplingParams",
    "__version__",
    "memory_needed",
    "pull",
]

_HOMES = {
    "LLM": "localspec.llm",
    "AnswerOptions": "localspec.request",
    "AnswerStream": "localspec.answer_stream",
    "Chunk": "localspec.request",
    "Completion": "localspec.request",
    "Conversation": "localspec.conversation",
    "LoadCancelled": "localspec.errors",
    "LoadProgress": "localspec.background",
    "Loading": "localspec.background",
    "LocalspecError": "localspec.errors",
    "MemoryEstimate": "localspec.llama.memory",
    "SamplingParams": "localspec.decoding.params",
    "memory_needed": "localspec.footprint",
    "pull": "localspec.pulling",
}

# Silent unless the application asks: nothing reaches standard error by way of logging's last resort.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
