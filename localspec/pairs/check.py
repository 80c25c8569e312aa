"""Refuses a draft that cannot draft for a target, before any weights are loaded."""

from __future__ import annotations

from localspec.errors import PairingError
from localspec.gguf.metadata import Metadata
from localspec.pairs.judgement import Judgement, judge


def check_pair(target: Metadata, draft: Metadata) -> Judgement:
    """The judgement of a draft that fits. Raises PairingError (`target`, `draft`, `reason`) for one that does not."""
    judgement = judge(target, draft)
    if judgement.refusal is None:
        return judgement
    raise PairingError(
        judgement.sentence,
        judgement.remedy,
        command=judgement.command,
        target=target.path,
        draft=draft.path,
        reason=judgement.refusal.clause,
    )
