"""localspec: run a quantized language model locally by speculative decoding, with the target's exact output."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.answers.conversation import Conversation
    from localspec.answers.request import AnswerOptions, Chunk, Completion
    from localspec.answers.stream import AnswerStream
    from localspec.decoding.params import SamplingParams
    from localspec.engine.loading import Loading, LoadProgress
    from localspec.engine.memory import MemoryEstimate, memory_needed
    from localspec.errors import LoadCancelled, LocalspecError
    from localspec.hub.pull import pull
    from localspec.llm import LLM

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
    "AnswerOptions": "localspec.answers.request",
    "AnswerStream": "localspec.answers.stream",
    "Chunk": "localspec.answers.request",
    "Completion": "localspec.answers.request",
    "Conversation": "localspec.answers.conversation",
    "LoadCancelled": "localspec.errors",
    "LoadProgress": "localspec.engine.loading",
    "Loading": "localspec.engine.loading",
    "LocalspecError": "localspec.errors",
    "MemoryEstimate": "localspec.engine.memory",
    "SamplingParams": "localspec.decoding.params",
    "memory_needed": "localspec.engine.memory",
    "pull": "localspec.hub.pull",
}

# Silent unless the application asks: nothing reaches standard error by way of logging's last resort.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
