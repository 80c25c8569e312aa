"""Whether the target's own prediction layers draft, and their context."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.compute import library
from localspec.compute.context_options import ContextOptions
from localspec.compute.library import CancelFlag, Context, Headed, Library
from localspec.decoding.head_drafter import HeadDrafter
from localspec.decoding.model_drafter import ModelDrafter
from localspec.decoding.session import Session
from localspec.engine.options import EngineOptions
from localspec.errors import InvalidRequest
from localspec.gguf.heads import prediction_layers
from localspec.gguf.metadata import Metadata


@dataclass(frozen=True)
class Head:
    """drafts: whether the target's head drafts. states: whether its hidden states are kept, which in strict mode is so
    for every file that has a head: passes compute the same with it and without. why_not: a clause, or "".
    """

    drafts: bool
    states: bool
    why_not: str


def head_of(target: Metadata, has_draft: bool, options: EngineOptions, library: Library) -> Head:
    """has_draft: whether a draft model was given. Raises `InvalidRequest` where the head was asked for and cannot."""
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


def may_draft(target: Metadata, has_draft: bool, options: EngineOptions) -> bool:
    """Whether a head is expected to draft, by what the file's key-values say alone: nothing else is read."""
    wanted = options.head == "on" or (options.head == "auto" and not has_draft)
    return wanted and not options.no_draft and prediction_layers(target) > 0


def open_head(target: Context, options: ContextOptions, cancel: CancelFlag) -> library.HeadContext:
    """A context on the prediction layers of the target's weights. Raises `ModelLoadError`."""
    assert isinstance(target.weights, Headed), "weights with their head loaded"
    return target.weights.open_head(target, options, cancel)


def model_drafter(session: Session, n_vocab: int, eog: frozenset[int]) -> ModelDrafter:
    """Who drafts on a session: its context is a draft model's, or the target's head."""
    if isinstance(session.context, library.HeadContext):
        return HeadDrafter(session, session.context, n_vocab, eog)
    return ModelDrafter(session, n_vocab, eog)
