"""Whether the target's own prediction layers draft, and their context."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.compute import library
from localspec.compute.library import Library
from localspec.decoding.head_drafter import HeadDrafter
from localspec.decoding.model_drafter import ModelDrafter
from localspec.decoding.session import Session
from localspec.engine.options import EngineOptions
from localspec.errors import InvalidRequest, ModelLoadError, PairingError
from localspec.gguf.eagle import is_eagle, target_layers
from localspec.gguf.heads import is_head_alone, prediction_layers, why_of_another
from localspec.gguf.metadata import Metadata


@dataclass(frozen=True)
class Head:
    """drafts: whether the target's head drafts. states: whether its hidden states are kept, which in strict mode is so
    for every file that has a head: passes compute the same with it and without. why_not: a clause, or "". file: that
    holds it, where it is not the target's. layer_inputs: those of the target that an EAGLE-3 head reads.
    """

    drafts: bool
    states: bool
    why_not: str
    file: Metadata | None = None
    layer_inputs: tuple[int, ...] = ()


def head_of(target: Metadata, draft: Metadata | None, options: EngineOptions, library: Library) -> Head:
    """draft: the file that was given as the draft, which may hold a head alone.

    Raises `InvalidRequest` where the head was asked for and cannot draft, `PairingError` for a file with the head of
    another model, and `ModelLoadError` for a target that is nothing but a head.
    """
    if is_eagle(target):
        raise ModelLoadError(
            f"{target.path.name} is an EAGLE-3 head, not a model of its own.",
            "Load the model that it was trained for, and give this file as its draft.",
            path=str(target.path),
        )
    if is_head_alone(target):
        raise ModelLoadError(
            f"{target.path.name} holds prediction layers alone, without the model that they belong to.",
            "Load the model, and give this file as its draft.",
            path=str(target.path),
        )
    if draft is not None and is_eagle(draft):
        return _eagle(target, draft, options, library)
    if draft is not None and is_head_alone(draft):
        return _of_a_file(target, draft, library)
    has_draft = draft is not None
    asked = options.head == "on" and not options.no_draft
    if asked and has_draft:
        raise InvalidRequest(
            "head is 'on', and a draft model was given: one of them drafts.",
            "Leave one of them out.",
            name="head",
        )
    why_not = library.why_no_head(target)
    if asked and why_not:
        raise InvalidRequest(
            f"{target.path.name} cannot draft for itself: {why_not}.",
            "Give a draft model, or leave head='on' out.",
            command="Give a draft model with -md/--draft, or leave --draft mtp out.",
            name="head",
        )
    drafts = not (why_not or has_draft or options.no_draft or options.head == "off")
    return Head(drafts, drafts or (options.strict and not why_not), why_not)


def _eagle(target: Metadata, draft: Metadata, options: EngineOptions, library: Library) -> Head:
    if reason := library.why_no_head(draft, target):
        raise PairingError(
            f"{draft.path.name} is an EAGLE-3 head that cannot draft for {target.path.name}: {reason}.",
            "Use the head that was trained for this target, or leave the draft out.",
            target=target.path,
            draft=draft.path,
            reason=reason,
        )
    own = options.strict and not library.why_no_head(target)
    return Head(True, own, "", draft, target_layers(draft))


def _of_a_file(target: Metadata, draft: Metadata, library: Library) -> Head:
    if reason := why_of_another(target, draft) or library.why_no_head(draft):
        raise PairingError(
            f"{draft.path.name} holds prediction layers that cannot draft for {target.path.name}: {reason}.",
            "Use the file that belongs to this target, or leave the draft out.",
            target=target.path,
            draft=draft.path,
            reason=reason,
        )
    return Head(True, True, "", draft)


def may_draft(target: Metadata, has_draft: bool, options: EngineOptions) -> bool:
    """Whether a head is expected to draft, by what the file's key-values say alone: nothing else is read."""
    wanted = options.head == "on" or (options.head == "auto" and not has_draft)
    return wanted and not options.no_draft and prediction_layers(target) > 0


def model_drafter(session: Session, n_vocab: int, eog: frozenset[int]) -> ModelDrafter:
    """Who drafts on a session: its context is a draft model's, or the target's head."""
    if isinstance(session.context, library.HeadContext):
        return HeadDrafter(session, session.context, n_vocab, eog)
    return ModelDrafter(session, n_vocab, eog)


def head_sentence(target: Metadata, draft: Metadata | None, options: EngineOptions, library: Library) -> str:
    """What becomes of prediction layers in these files, or "" where there are none."""
    for file, fits in ((target, ""), (draft, f" for {target.path.name}")):
        if file is not None and is_eagle(file):
            reason = library.why_no_head(file, target) if fits and file.path.is_file() else ""
            does = (
                f"cannot draft{fits}: {reason}"
                if reason
                else f"drafts{fits or ' for the model it was trained for'}"
            )
            return f"{file.path.name} is an EAGLE-3 head, which {does}."
    if draft is not None:
        alone = draft.path.is_file() and is_head_alone(draft)
        return (
            f"{draft.path.name} holds prediction layers, which draft from what the target computes."
            if alone
            else ""
        )
    count = prediction_layers(target)
    if not count:
        return ""
    layers = "one prediction layer" if count == 1 else f"{count} prediction layers"
    draft_for_it, do_not = ("drafts", "does not") if count == 1 else ("draft", "do not")
    if not target.path.is_file():
        return f"{target.path.name} has {layers}."
    if reason := library.why_no_head(target):
        return f"{target.path.name} has {layers}, which {do_not} draft here: {reason}."
    if options.head == "off" or options.no_draft:
        return f"{target.path.name} has {layers}, which could draft for it."
    return f"{target.path.name} has {layers}, which {draft_for_it} for it where no draft model is given."
