"""What is said of an answer that has ended: the line under it, and all figures with their meanings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.answers.request import Completion
    from localspec.decoding.stats import Stats


NOT_PLAIN = 0.95
"""Where nothing was drafted it ran at plain speed, and this is only said of more than that."""


def cut_off(completion: Completion, max_tokens: int | None) -> str:
    """That the answer did not end by itself, and where; "" where it did, or was stopped.

    max_tokens: its longest, if there was one; else the context ended it.
    """
    if completion.finish_reason != "length":
        return ""
    tokens = completion.stats.tokens
    why = "-n" if max_tokens is not None and tokens >= max_tokens else "the context is full"
    return f"cut off at {_tokens(tokens)} ({why})"


def figures(completion: Completion, max_tokens: int | None) -> str:
    """One line: the end, the speed, what was drafted and why; what there is nothing to say about is left out."""
    stats = completion.stats
    parts = ["stopped"] if completion.finish_reason == "cancelled" else []
    parts.append(cut_off(completion, max_tokens) or _tokens(stats.tokens))
    if stats.tokens_per_second:
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
    if stats.speedup_estimate is not None and (stats.drafted or stats.speedup_estimate < NOT_PLAIN):
        parts.append(f"about {stats.speedup_estimate:.1f}x plain")
    if stats.acceptance_rate is None:
        parts += ["none drafted"] if completion.drafting.startswith("on") else []
    else:
        parts.append(f"{stats.drafted} drafted, {stats.accepted} accepted")
        parts.append(f"acceptance rate {stats.acceptance_rate:.2f}")
        parts.append(f"mean acceptance length {stats.mean_acceptance_length:.2f}")
    return ", ".join([*parts, f"drafting {completion.drafting}"])


def so_far(stats: Stats | None) -> str:
    """How a running answer goes, in a few words; "" before there is something to say."""
    if stats is None or not stats.tokens:
        return ""
    parts = [_tokens(stats.tokens)]
    if stats.tokens_per_second:
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
    if stats.speedup_estimate is not None:
        parts.append(f"about {stats.speedup_estimate:.1f}x plain")
    if stats.drafted:
        parts.append(f"{stats.accepted} of {stats.drafted} drafted accepted")
    return ", ".join(parts)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


MEANINGS = {
    "prompt_tokens": "of the prompt, with the conversation so far",
    "cached_tokens": "of these, not read again",
    "tokens": "accepted + recovered + bonus + plain",
    "first_tokens": "of these, from the last pass over the prompt",
    "rounds": "passes of the target that gave tokens",
    "drafted": "tokens proposed to the target",
    "accepted": "of these, kept by the target",
    "recovered": "the target's own, each for a refused one",
    "bonus": "the target's own, each behind a whole draft",
    "plain": "from rounds that drafted nothing",
    "prefill_seconds": "until the first token",
    "decode_seconds": "from the first token to the last",
    "target_seconds": "in passes of the target",
    "draft_seconds": "in drafting",
    "other_seconds": "in all else, such as choosing tokens",
    "threads": "of a pass; the fewest, where others came",
    "draft_ended_at": "tokens until the draft ended; -: it did not",
    "plain_seconds": "decode seconds without drafting, estimated",
    "tokens_per_second": "behind the first tokens, by decode seconds",
    "acceptance_rate": "accepted / drafted",
    "mean_acceptance_length": "tokens / rounds; plain decoding has 1",
    "speedup_estimate": "plain seconds / decode seconds",
    "seed": "as asked for; - means: it does not repeat",
}
"""Of the figures in `Stats`, and the seed."""


def explained(completion: Completion) -> Iterator[str]:
    """All figures of an answer, a line for each, with what it means."""
    rest = {"seed": completion.seed, "drafting": completion.drafting}
    if completion.hint:
        rest["hint"] = completion.hint
    for name, value in {**completion.stats.to_dict(), **rest}.items():
        yield f"{name.replace('_', ' '):<22} {_figure(value):<7} {MEANINGS.get(name, '')}".rstrip()


def _figure(value: float | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
