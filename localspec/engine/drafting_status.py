"""Whether an engine drafts, from what, why not, and what would change that, in words."""

from __future__ import annotations

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.stats import Stats
from localspec.engine.engine import Engine
from localspec.engine.libraries import libraries
from localspec.system.packages import install

PAYS = 1.1
"""An estimated speedup from which on there is nothing to say."""
EASY = 0.75
"""Share of drafted tokens accepted from which on the text cannot be blamed."""
BUSY = 1.5
"""Passes that take this many times what they took on the calm machine."""


def describe_drafting(
    engine: Engine, controller: AdaptiveController | None, draft_tokens: int | str, stats: Stats | None = None
) -> str:
    """Whether tokens are drafted, and why not; with `stats`, what became of it in one answer."""
    reason = engine.no_draft_reason
    if reason or draft_tokens == 0:
        return f"off: {reason or 'asked for'}"
    model = "the model's own prediction layers" if engine.drafts_itself else "the draft model"
    if engine.drafts_itself and engine.head.layer_inputs:
        model = "an EAGLE-3 head"
    sources = f"from {model}" if engine.draft else "from repeated text"
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
            sources = f"from repeated text alone: as {how}, passes of {model} cost more than they save"
    return f"on where it pays, {sources}{until}"


def drafting_hint(
    engine: Engine, controller: AdaptiveController | None, stats: Stats, temperature: float
) -> str:
    """What would let drafting pay more than it did in this answer, in sentences.

    "" where it pays, was not asked for, is not possible, or where the answer was too short to tell.
    """
    speedup = stats.speedup_estimate
    if controller is None or engine.no_draft_reason or speedup is None or speedup >= PAYS:
        return ""
    if (slowed := controller.target.slowed) >= BUSY:
        return f"The machine is busy: passes take {slowed:.1f} times as long as on the calm machine."
    if reason := standing_hint(engine, controller):
        return reason
    if (stats.acceptance_rate or 0.0) >= EASY:
        return ""
    cooler = ", and a lower temperature is too" if temperature > 0 else ""
    return f"This text was hard to guess: code, edits and summaries are easier{cooler}."


def standing_hint(engine: Engine, controller: AdaptiveController | None) -> str:
    """What would let drafting pay whatever is asked, in a sentence; "" where it can pay as it is, or not at all."""
    if controller is None or engine.no_draft_reason:
        return ""
    pays = engine.draft is not None and controller.can_pay(0)
    offered = next((library for library in libraries() if library.offer), None)
    if offered and not pays and engine.target.weights.gpu_layers == 0 and not engine.drafts_itself:
        return f"{offered.package} is not installed: {offered.offer}. {install(offered.requirement)}"
    if engine.draft is None:
        return "Without a draft model only repeated text is drafted from: a small model that fits drafts the rest."
    if not controller.measured:
        return "What passes cost is measured while nobody asks anything: guesses are careful until then."
    if not pays and controller.pays_but_for_the_way_back(0):
        return (
            "Drafting could pay but for the way back of this model's running state: copies of it take "
            f"{1000 * controller.back.seconds:.0f} ms a round, and tokens before a refused one are read again."
        )
    if not pays:
        return (
            "Passes over several tokens cost much with this file here: a target in another format, "
            "or a larger one with this draft, may gain more."
        )
    return ""
