"""What of a request goes to another process, and how an answer ends that it did not finish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localspec.answers.request import Chunk, Completion, Request
from localspec.decoding.stats import Stats
from localspec.errors import InvalidRequest

_OF_ANSWERS = (
    "draft_tokens", "verify", "prediction", "grammar", "json_schema", "shown_tokens", "prompt_logprobs",
)  # fmt: skip
"""Options beside those of sampling."""


def portable(request: Request, options: dict[str, Any]) -> dict[str, Any]:
    """The options that made `request`, for another process. Raises `InvalidRequest` for functions."""
    if request.processors:
        raise InvalidRequest(
            "logits_processors are functions of this process, and the models are in another.",
            "Leave them out, or load the models without rpc and draft_rpc.",
            command="Load the models without servers.",
            name="logits_processors",
        )
    kept = {name: options[name] for name in _OF_ANSWERS if name in options}
    return {**kept, "params": request.params}


def cut_short(request: Request, chunks: Sequence[Chunk], drafting: str) -> Chunk:
    """The last chunk of a cancelled answer whose process had to be ended. chunks: those that came."""
    text = "".join(chunk.text for chunk in chunks)
    counted = [chunk.stats for chunk in chunks if chunk.stats is not None]
    logprobs = tuple(entry for chunk in chunks for entry in chunk.logprobs)
    completion = Completion(
        text=text,
        ids=tuple(token for chunk in chunks for token in chunk.tokens),
        finish_reason="cancelled",
        stats=counted[-1] if counted else Stats(prompt_tokens=len(request.ids)),
        seed=request.params.seed,
        drafting=drafting,
        drafted=tuple(flag for chunk in chunks for flag in chunk.drafted),
        logprobs=None if request.params.logprobs is None else logprobs,
        prompt_logprobs=next((found for chunk in chunks if (found := chunk.prompt_logprobs)), None),
        text_ends=tuple(min(end, len(text)) for chunk in chunks for end in chunk.text_ends),
    )
    return Chunk("", (), completion, stats=completion.stats)
