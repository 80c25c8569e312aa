"""Whether an engine drafts, from what, and why not, in words."""

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
    fixed = isinstance(draft_tokens, int)
    stop = engine.draft_stop if stats is not None else None
    if stats is not None and not stats.drafted and (stop or stats.rounds > 1 or not fixed):
        if stop:
            return f"off: {stop}"
        return f"off: nothing in this answer {'could be drafted' if fixed else 'was worth drafting'}"
    until = f"; {stop}" if stop else ""
    if isinstance(draft_tokens, int):
        most = engine.most_draft_tokens
        count = (
            str(draft_tokens)
            if draft_tokens <= most
            else f"{most} (not {draft_tokens}: a pass checks no more)"
        )
        return f"on, {count} tokens a round {sources}{until}"
    if engine.draft and controller is not None:
        if controller.can_pay(0):
            sources += " and repeated text"
        else:
            how = "measured" if controller.measured else "far as is known yet"
            sources = (
                f"from repeated text alone: as {how}, passes of the draft model cost more than they save"
            )
    return f"on where it pays, {sources}{until}"
