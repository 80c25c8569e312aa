"""Refuses a draft that cannot draft for a target, before any weights are loaded."""

from __future__ import annotations

from localspec.errors import PairingError
from localspec.gguf.metadata import Metadata
from localspec.pairs.judgement import Judgement, judge


def check_pair(target: Metadata, draft: Metadata | None, *, cross_vocabulary: bool = True) -> Judgement:
    """The judgement of a draft that fits, or of a target alone. Raises PairingError (`target`, `draft`, `reason`) for
    one that does not.

    cross_vocabulary: whether a draft may have a vocabulary of its own.
    """
    judgement = judge(target, draft, cross_vocabulary=cross_vocabulary)
    if judgement.refusal is None:
        return judgement
    raise PairingError(
        judgement.sentence,
        judgement.remedy,
        command=judgement.command,
        target=target.path,
        draft=None if draft is None else draft.path,
        reason=judgement.refusal.clause,
    )
