"""How the two models behave apart from their vocabularies: memory, BOS and EOS, ends, templates, context.

Only the target's BOS, EOS, ends of generation and chat template are used, so none of these refuses a pair. A draft that
was trained on other prompts guesses worse.
"""

from __future__ import annotations

from collections.abc import Collection

from localspec.gguf.metadata import Metadata
from localspec.gguf.running_state import keeps_snapshots
from localspec.pairs.reason import Reason
from localspec.pairs.vocabulary_gap import spelled

SHOWN = 4
RUNNING_STATE = "whose running state"
"""In what is said of a model that has one."""


def rollback(model: Metadata, role: str) -> Reason:
    """How drafted tokens that do not stand are taken back. role: "target" or "draft"."""
    topic, name = f"{role} rollback", model.architecture
    if model.is_recurrent or model.is_hybrid:
        kind = "recurrent" if model.is_recurrent else "hybrid"
        clause = f"the {role} is a {kind} model ({name}), {RUNNING_STATE}"
        if role == "target" and keeps_snapshots(model):
            return Reason(
                topic, "harmless", f"{clause} llama.cpp keeps behind the last tokens, to take them back"
            )
        again = "is saved before drafted tokens and put back, and tokens that stand are read again"
        return Reason(topic, "harmless", f"{clause} {again}")
    if model.n_swa > 0:
        clause = (
            f"the {role} has a sliding window of {model.n_swa} tokens ({name}), and its whole cache is kept"
        )
        return Reason(topic, "harmless", f"{clause}, so that it can be rolled back")
    return Reason(topic, "harmless", f"the {role} is an attention model ({name}), which can be rolled back")


def conduct(target: Metadata, draft: Metadata, n_ctx: int | None) -> list[Reason]:
    """What each model starts and ends texts with, its template and its context. n_ctx: tokens that will be used."""
    return [
        _bos(target, draft),
        _eos(target, draft),
        _ends(target, draft),
        _templates(target, draft),
        context(target, draft, n_ctx),
    ]


def context(target: Metadata, draft: Metadata, n_ctx: int | None = None) -> Reason:
    """Whether the draft reaches as far as a context of `n_ctx` tokens; None: all that the target was trained for."""
    ours, theirs = target.n_ctx_train, draft.n_ctx_train
    needed = min(ours, n_ctx or ours)
    if theirs < needed:
        clause = f"the draft proposes only within the first {theirs} tokens: it was trained for no more"
        return Reason("context", "costs acceptance", clause)
    if ours == theirs:
        return Reason("context", "harmless", f"both were trained for {ours} tokens of context")
    clause = f"the target was trained for {ours} tokens of context and the draft for {theirs}"
    if n_ctx and theirs < ours:
        clause += f", enough for the {needed} asked for"
    return Reason("context", "harmless", clause)


def _bos(target: Metadata, draft: Metadata) -> Reason:
    ours, theirs = _start(target), _start(draft)
    if ours == theirs:
        return Reason("BOS", "harmless", f"prompts of both get {ours or 'no BOS token'} in front")
    clause = f"prompts get {ours or 'no BOS token'} in front, as the target wants it"
    return Reason("BOS", "costs acceptance", f"{clause}, and the draft was trained with {theirs or 'none'}")


def _start(model: Metadata) -> str:
    """The BOS token, spelled, that is put in front of every prompt, or ""."""
    return _text(model, model.bos_id) if model.add_bos else ""


def _eos(target: Metadata, draft: Metadata) -> Reason:
    ours, theirs = (_text(model, model.eos_id) for model in (target, draft))
    if ours == theirs:
        return Reason("EOS", "harmless", f"the EOS token of both is {ours or 'missing'}")
    clause = f"the EOS token is {ours or 'missing'} in the target and {theirs or 'missing'} in the draft"
    return Reason("EOS", "harmless", f"{clause}, and only the target's counts")


def _ends(target: Metadata, draft: Metadata) -> Reason:
    topic = "ends of generation"
    ours, theirs = (
        frozenset(spelled(model.tokens[token]) for token in model.eog_ids) for model in (target, draft)
    )
    if ours == theirs:
        return Reason(topic, "harmless", f"both end an answer at {_few(ours)}")
    differences = [
        f"{words} {_few(texts)}"
        for words, texts in (("has also", theirs - ours), ("lacks", ours - theirs))
        if texts
    ]
    differing = " and ".join(differences)
    clause = f"an answer ends at {_few(ours)}; the draft {differing}, and only the target's ends count"
    return Reason(topic, "harmless", clause)


def _templates(target: Metadata, draft: Metadata) -> Reason:
    topic = "chat template"
    if target.chat_template is None:
        return Reason(topic, "harmless", "the target has no chat template, so there are no turns to agree on")
    if draft.chat_template is None:
        clause = "the draft has no chat template, so it may not know the turns of the target's"
        return Reason(topic, "costs acceptance", clause)
    if target.chat_template == draft.chat_template:
        return Reason(topic, "harmless", "both have the same chat template")
    ours, theirs = _marks(target), _marks(draft)
    if ours == theirs:
        clause = "their chat templates differ in wording and mark turns by the same tokens"
        return Reason(topic, "harmless", clause)
    clause = f"the target's chat template marks turns by {_few(ours)}, the draft's by {_few(theirs)}"
    return Reason(topic, "costs acceptance", clause)


def _marks(model: Metadata) -> frozenset[str]:
    """The control tokens that the chat template writes."""
    template = model.chat_template or ""
    return frozenset(text for text in model.special_texts if text in template)


def _text(model: Metadata, token: int | None) -> str:
    known = token is not None and 0 <= token < len(model.tokens)
    return repr(spelled(model.tokens[token])) if known and token is not None else ""


def _few(texts: Collection[str]) -> str:
    """Some of the texts and how many more there are."""
    shown = ", ".join(map(repr, sorted(texts)[:SHOWN])) or "nothing"
    more = len(texts) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
