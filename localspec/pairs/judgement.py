"""Judgement: whether a draft can draft for a target, from what their files say and without loading weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from localspec.errors import ModelFileError
from localspec.gguf.eagle import is_eagle, why_not_for
from localspec.gguf.heads import is_head_alone, why_of_another
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.pairs.behaviour import RUNNING_STATE, conduct, rollback
from localspec.pairs.reason import Reason
from localspec.pairs.shared_vocabulary import SharedVocabulary, cross_reasons, shared_vocabulary
from localspec.pairs.vocabulary_gap import Difference, VocabularyGap

Verdict: TypeAlias = Literal["fits", "fits, with reservations", "does not fit"]
NO_DRAFT = "no_draft=True goes on without a draft."
_SOME_COST = "costs acceptance"


@dataclass(frozen=True)
class Judgement:
    """What was found about a target and a draft.

    sentence: the deciding fact with both names. remedy: what to do where they do not fit, or "".
    reasons:  every fact looked at; of those that refuse, the first decides.
    differing: the first ids that mean different tokens to the two, where ids pass between them.
    shared: what they share where they have vocabularies of their own, and texts pass; else None.
    """

    target: Path
    draft: Path | None
    verdict: Verdict
    sentence: str
    remedy: str = ""
    reasons: tuple[Reason, ...] = ()
    differing: tuple[Difference, ...] = ()
    shared: SharedVocabulary | None = None

    @property
    def command(self) -> str:
        """The remedy in the words of the command line."""
        return "--no-draft goes on without a draft." if self.remedy == NO_DRAFT else self.remedy

    @property
    def fits(self) -> bool:
        """Whether drafting is possible, well or less well."""
        return self.verdict != "does not fit"

    @property
    def refusal(self) -> Reason | None:
        """The reason that decides against the draft, or None."""
        return next((reason for reason in self.reasons if reason.severity == "refuses"), None)

    @property
    def reservations(self) -> tuple[Reason, ...]:
        """The reasons that make the draft guess worse."""
        return tuple(reason for reason in self.reasons if reason.severity == _SOME_COST)

    @property
    def running_states(self) -> tuple[str, ...]:
        """For each model that has one, a sentence that tells how it takes drafted tokens back."""
        return tuple(reason.sentence for reason in self.reasons if RUNNING_STATE in reason.clause)

    def to_dict(self) -> dict[str, object]:
        """The judgement as the command line prints it, ready for JSON."""
        return {
            "target": str(self.target),
            "draft": None if self.draft is None else str(self.draft),
            "fits": self.fits,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "remedy": self.command,
            "reasons": [
                {"topic": reason.topic, "severity": reason.severity, "sentence": reason.sentence}
                for reason in self.reasons
            ],
            "differing": [asdict(difference) for difference in self.differing],
            "shared": None if self.shared is None else self.shared.to_dict(),
        }


def judge(
    target: Metadata, draft: Metadata | None, *, n_ctx: int | None = None, cross_vocabulary: bool = True
) -> Judgement:
    """Whether `draft` can draft for `target`; without one, how tokens are taken back.

    n_ctx: tokens of context that will be used; without it, all that the target was trained for.
    cross_vocabulary: whether a draft may have a vocabulary of its own.
    """
    if _holds_a_head_alone(target) and not is_eagle(target):
        return _no_target(target, draft)
    if draft is None:
        return _alone(target)
    gap = VocabularyGap(target, draft)
    vocabularies, differing, shared = gap.reasons(), gap.first, None
    if (
        cross_vocabulary
        and not is_eagle(draft)
        and any(reason.severity == "refuses" for reason in vocabularies)
    ):
        shared = shared_vocabulary(target, draft)
        vocabularies, differing = cross_reasons(target, draft, shared), ()
    other_target = why_not_for(draft, target) if is_eagle(draft) else ""
    reasons = (
        *([Reason("head", "refuses", other_target)] if other_target else []),
        rollback(target, "target"),
        rollback(draft, "draft"),
        *vocabularies,
        # An EAGLE-3 head reads no text of its own, and belongs to a model of another architecture.
        *(() if is_eagle(draft) else (*conduct(target, draft, n_ctx), *_heads(target, draft))),
    )
    return _decided(target.path, draft.path, reasons, differing, shared)


def judge_files(target: Path, draft: Path | None, *, n_ctx: int | None = None) -> Judgement:
    """Like `judge`; a file that is no usable model does not fit, for the reason that reading it gives."""
    try:
        return judge(read_metadata(target), read_metadata(draft) if draft else None, n_ctx=n_ctx)
    except ModelFileError as error:
        return unusable(target, draft, error)


def unusable(target: Path, draft: Path | None, error: ModelFileError) -> Judgement:
    """The judgement of files of which one is no usable model."""
    reason = Reason("file", "refuses", error.message.removesuffix("."))
    return Judgement(target, draft, "does not fit", error.message, error.remedy, (reason,))


def _alone(target: Metadata) -> Judgement:
    name, reason = target.path.name, rollback(target, "target")
    sentence = f"Text that repeats itself can be drafted for {name} without a draft model."
    return Judgement(target.path, None, "fits", sentence, "", (reason,))


def _holds_a_head_alone(model: Metadata) -> bool:
    """Where the file is not here, nothing is known of its tensors."""
    return model.path.is_file() and is_head_alone(model)


def _no_target(target: Metadata, draft: Metadata | None) -> Judgement:
    clause = f"{target.path.name} holds prediction layers alone, without the model that they belong to"
    remedy = "Load the model, and give this file as its draft."
    reason = Reason("prediction layers", "refuses", clause)
    return Judgement(
        target.path, None if draft is None else draft.path, "does not fit", f"{clause}.", remedy, (reason,)
    )


def _heads(target: Metadata, draft: Metadata) -> tuple[Reason, ...]:
    """What refuses a draft that is nothing but the prediction layers of another model."""
    if not _holds_a_head_alone(draft):
        return ()
    why = why_of_another(target, draft)
    return (Reason("prediction layers", "refuses", f"it holds prediction layers, and {why}"),) if why else ()


def _decided(
    target: Path,
    draft: Path,
    reasons: tuple[Reason, ...],
    differing: tuple[Difference, ...],
    shared: SharedVocabulary | None,
) -> Judgement:
    refusals = [reason for reason in reasons if reason.severity == "refuses"]
    costs = [reason for reason in reasons if reason.severity == _SOME_COST]
    verdict: Verdict = "fits"
    ending, remedy = next(reason.clause for reason in reasons if reason.topic == "token ids"), ""
    words, manner = "can draft", ""
    if refusals:
        verdict, words, ending, remedy = "does not fit", "cannot draft", refusals[0].clause, NO_DRAFT
    elif costs:
        verdict, manner, ending = "fits, with reservations", ", less well", costs[0].clause
    sentence = f"{draft.name} {words} for {target.name}{manner}: {ending}."
    return Judgement(target, draft, verdict, sentence, remedy, reasons, differing, shared)
