"""What drafting says of itself."""

from __future__ import annotations

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.stats import Stats
from localspec.engine.engine import Engine


def describe_drafting(
    engine: Engine, controller: AdaptiveController | None, draft_tokens: int | str, stats: Stats | None = None
) -> str:
    """Whether tokens are drafted, and why not; with `stats`, what became of it in one answer."""
    reason = engine.no_draft_reason
    if reason or draft_tokens == 0:
        return f"off: {reason or 'asked for'}"
    sources = "from the draft model" if engine.draft else "from repeated text"
    if isinstance(draft_tokens, int):
        return f"on, {draft_tokens} tokens a round {sources}"
    if stats is not None and not stats.drafted:
        return "off: nothing in this answer was worth drafting"
    if engine.draft and controller is not None:
        if controller.can_pay(0):
            sources += " and repeated text"
        else:
            sources = (
                "from repeated text alone: as measured, passes of the draft model cost more than they save"
            )
    return f"on where it pays, {sources}"
