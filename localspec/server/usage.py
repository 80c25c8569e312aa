"""What an answer cost: OpenAI's usage and llama.cpp's timings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localspec.answers.request import Completion
from localspec.decoding.stats import Stats


def usage(groups: Sequence[Sequence[Completion]], reasoning_tokens: int = 0) -> dict[str, Any]:
    """OpenAI's usage for the answers to one or several prompts, a group of choices for each.

    A prompt counts once, whatever the number of its choices; cached_tokens are those that its first choice found in
    the cache. accepted_prediction_tokens are the tokens of the answers that came from a draft, whoever drafted: the
    `prediction` of the request, repeated text or the draft model (`Completion.drafted`).
    rejected_prediction_tokens are all other tokens that were drafted (`Stats.drafted`); unlike OpenAI's, they are
    no part of completion_tokens.
    """
    firsts = [group[0].stats for group in groups]
    completions = [completion for group in groups for completion in group]
    prompt = sum(stats.prompt_tokens for stats in firsts)
    answered = sum(len(completion.ids) for completion in completions)
    accepted = sum(sum(completion.drafted) for completion in completions)
    drafted = sum(completion.stats.drafted for completion in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answered,
        "total_tokens": prompt + answered,
        "prompt_tokens_details": {"cached_tokens": sum(stats.cached_tokens for stats in firsts)},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def timings(all_stats: Sequence[Stats]) -> dict[str, float | int]:
    """llama.cpp's timings, summed over answers. `ms` are milliseconds; a rate is 0 where no time was spent.

    prompt_n: tokens of prompts that were read; cache_n: those that were in the cache. predicted_n counts the
    end of generation, as llama.cpp does; the tokens of the last prefill pass belong to prompt_ms. speedup_estimate,
    which llama.cpp does not have, is there where it is known (`Stats.speedup_estimate`).
    """
    cached = sum(stats.cached_tokens for stats in all_stats)
    read = sum(stats.prompt_tokens for stats in all_stats) - cached
    predicted = sum(stats.tokens for stats in all_stats)
    after_first = predicted - sum(stats.first_tokens for stats in all_stats)
    prompt_seconds = sum(stats.prefill_seconds for stats in all_stats)
    seconds = sum(stats.decode_seconds for stats in all_stats)
    return {
        "cache_n": cached,
        "prompt_n": read,
        "prompt_ms": 1000 * prompt_seconds,
        "prompt_per_token_ms": _ratio(1000 * prompt_seconds, read),
        "prompt_per_second": _ratio(read, prompt_seconds),
        "predicted_n": predicted,
        "predicted_ms": 1000 * seconds,
        "predicted_per_token_ms": _ratio(1000 * seconds, after_first),
        "predicted_per_second": _ratio(after_first, seconds),
        "draft_n": sum(stats.drafted for stats in all_stats),
        "draft_n_accepted": sum(stats.accepted for stats in all_stats),
        **_speedup(all_stats),
    }


def _speedup(all_stats: Sequence[Stats]) -> dict[str, float]:
    """Of all answers together, where it is known of each."""
    known = [stats.plain_seconds for stats in all_stats if stats.speedup_estimate is not None]
    if not known or len(known) < len(all_stats):
        return {}
    seconds = sum(stats.decode_seconds for stats in all_stats)
    return {"speedup_estimate": sum(plain or 0.0 for plain in known) / seconds}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
