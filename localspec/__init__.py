"""localspec: run a quantized language model locally by speculative decoding, with the target's exact output."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from localspec.system.version import VERSION as __version__

if TYPE_CHECKING:
    from localspec.aio import AsyncLLM
    from localspec.answers.conversation import Conversation
    from localspec.answers.request import AnswerOptions, Chunk, Completion
    from localspec.answers.stream import AnswerStream
    from localspec.decoding.params import SamplingParams
    from localspec.engine.loading import Loading
    from localspec.engine.memory import MemoryEstimate, memory_needed
    from localspec.engine.options import EngineOptions, LoadOptions
    from localspec.errors import LoadCancelled, LocalspecError
    from localspec.hub.pull import pull
    from localspec.llm import LLM
    from localspec.measure.bench_result import BenchResult, bench
    from localspec.system.progress import Progress, Stage
    from localspec.text.tool_calls import ToolCallParser

__all__ = [
    "LLM",
    "AnswerOptions",
    "AnswerStream",
    "AsyncLLM",
    "BenchResult",
    "Chunk",
    "Completion",
    "Conversation",
    "EngineOptions",
    "LoadCancelled",
    "LoadOptions",
    "Loading",
    "LocalspecError",
    "MemoryEstimate",
    "Progress",
    "SamplingParams",
    "Stage",
    "ToolCallParser",
    "__version__",
    "bench",
    "memory_needed",
    "pull",
]

_HOMES = {
    "AnswerOptions": "localspec.answers.request",
    "AnswerStream": "localspec.answers.stream",
    "AsyncLLM": "localspec.aio",
    "BenchResult": "localspec.measure.bench_result",
    "Chunk": "localspec.answers.request",
    "Completion": "localspec.answers.request",
    "Conversation": "localspec.answers.conversation",
    "EngineOptions": "localspec.engine.options",
    "LLM": "localspec.llm",
    "LoadCancelled": "localspec.errors",
    "LoadOptions": "localspec.engine.options",
    "Loading": "localspec.engine.loading",
    "LocalspecError": "localspec.errors",
    "MemoryEstimate": "localspec.engine.memory",
    "Progress": "localspec.system.progress",
    "SamplingParams": "localspec.decoding.params",
    "Stage": "localspec.system.progress",
    "ToolCallParser": "localspec.text.tool_calls",
    "bench": "localspec.measure.bench_result",
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
