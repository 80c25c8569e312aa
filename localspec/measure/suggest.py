"""Suggest: drafts that fit a target, and why others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from localspec.engine.libraries import reference
from localspec.engine.options import EngineOptions
from localspec.errors import DownloadError, ModelFileError
from localspec.gguf.eagle import is_eagle
from localspec.gguf.metadata import Metadata, read_metadata
from localspec.measure.estimate import LONGEST, from_numbers
from localspec.measure.prospect import ACCEPTANCES, Prospect, prospect
from localspec.measure.speed import assumed_acceptance, bytes_read
from localspec.pairs.catalogue import ModelFile
from localspec.pairs.judgement import judge
from localspec.store.candidates import Candidate

ASSUMED = sorted(ACCEPTANCES)[len(ACCEPTANCES) // 2]
"""The acceptance that is assumed when drafts are ranked."""
LARGEST = 0.5
"""Share of what a pass of the target reads that a draft's may read; one that reads more pays nowhere near its passes,
unless it was measured here to pay."""
ACROSS = 0.7
"""Share of the usual acceptance that a draft of another vocabulary is assumed to reach: an order for what was not
measured. SmolLM2-135M for Qwen2.5-Coder-1.5B had 0.5 to 0.6 of three drafted tokens stand in its better manner."""
_TOO_LARGE = "it is not smaller than the target"
Look = Callable[[ModelFile], Metadata]


@dataclass(frozen=True)
class Target:
    """What is to be drafted for. metadata: None for a pair's target that is neither here nor within reach."""

    name: str
    bytes: int
    file: ModelFile | None
    metadata: Metadata | None


@dataclass(frozen=True)
class Suggestion:
    """A draft that fits. sentence: the deciding fact. prospect: None where metadata were not read.

    assumed: the speedup where passes cost what they read and verifying is free, at an assumed acceptance: nothing to
    be told, but an order for what was not measured. None where metadata were not read.
    """

    draft: Candidate
    verdict: str
    sentence: str
    prospect: Prospect | None
    assumed: float | None = None

    @property
    def speedup(self) -> float | None:
        """Expected here at the acceptance `ASSUMED`; 1 where no draft pays, None where costs were not measured."""
        if self.prospect is None or self.prospect.gain is None:
            return None
        return next(
            float(e["speedup"]) for e in self.prospect.gain["estimates"] if e["acceptance"] == ASSUMED
        )


@dataclass(frozen=True)
class LeftOut:
    """A file that is not suggested, and why."""

    draft: Candidate
    reason: str


@dataclass(frozen=True)
class Suggestions:
    """Drafts that fit, best first, and what was left out, smallest first."""

    drafts: list[Suggestion]
    left_out: list[LeftOut]


def suggest_drafts(
    target: Target, found: Iterable[Candidate], options: EngineOptions, home: Path, look: Look | None = None
) -> Suggestions:
    """Judges every candidate. look: reads the metadata of a file that is not here, for those of the catalogue.

    Best first: drafts measured to pay, by expected speedup; those not measured, by what size, family and format let
    expect; those measured not to pay.
    """
    looker = Looker(look)
    results = [_judged(target, candidate, options, home, looker) for candidate in found]
    drafts = [result for result in results if isinstance(result, Suggestion)]
    left_out = [result for result in results if isinstance(result, LeftOut)]
    return Suggestions(
        sorted(drafts, key=_rank), sorted(left_out, key=lambda one: (one.draft.bytes, one.draft.name))
    )


class Looker:
    """Looks at files elsewhere until the network fails once."""

    def __init__(self, look: Look | None) -> None:
        self._look = look

    def __call__(self, file: ModelFile) -> Metadata | None:
        """The metadata, or None where the file cannot be looked at. Raises `ModelFileError`."""
        if self._look is None:
            return None
        try:
            return self._look(file)
        except DownloadError:
            self._look = None
            return None


def _judged(
    target: Target, draft: Candidate, options: EngineOptions, home: Path, look: Looker
) -> Suggestion | LeftOut | None:
    if _is_target(target, draft):
        return None
    if draft.bytes >= target.bytes:
        return LeftOut(draft, _TOO_LARGE)
    vouched = _vouched(target, draft)
    try:
        metadata = _metadata(draft, None if vouched else look)
    except ModelFileError as error:
        return LeftOut(draft, _clause(error.message))
    if metadata is not None and metadata.size_bytes >= target.bytes:
        return LeftOut(draft, _TOO_LARGE)
    if metadata is None or target.metadata is None:
        return _unread(target, draft, vouched)
    judgement = judge(target.metadata, metadata, n_ctx=options.n_ctx)
    if judgement.refusal is not None:
        return LeftOut(draft, judgement.refusal.clause)
    reads_target = is_eagle(metadata) and metadata.path.is_file()
    if reads_target and (reason := reference().why_no_head(metadata, target.metadata)):
        return LeftOut(draft, reason)
    outlook = prospect(target.metadata, metadata, options, home)
    share = bytes_read(metadata) / bytes_read(target.metadata)
    acceptance = assumed_acceptance(target.metadata, metadata, vouched=vouched)
    acceptance *= 1.0 if judgement.shared is None else ACROSS
    found = Suggestion(
        draft, judgement.verdict, judgement.sentence, outlook, _assumed_speedup(share, acceptance)
    )
    if share > LARGEST and (found.speedup or 0) <= 1:
        return LeftOut(draft, _not_small(share))
    return found


def _assumed_speedup(share: float, acceptance: float) -> float:
    estimator = from_numbers(share, longest=LONGEST)
    return estimator.speedup(estimator.best_length(acceptance), acceptance)


def _not_small(share: float) -> str:
    return (
        f"it is too large to draft: a pass reads {share:.0%} of what a pass of the target reads, and more than "
        f"{LARGEST:.0%} does not pay"
    )


def _unread(target: Target, draft: Candidate, vouched: bool) -> Suggestion | LeftOut:
    """Without the metadata of both, only the catalogue can say that they belong together."""
    share = draft.bytes / target.bytes
    if share > LARGEST and not vouched:
        return LeftOut(draft, _not_small(share))
    if vouched:
        return Suggestion(draft, "fits", f"The catalogue pairs {draft.name} with {target.name}.", None)
    which = "the target" if target.metadata is None else "it"
    return LeftOut(draft, f"{which} is not on this disk, so its vocabulary is not known")


def _metadata(draft: Candidate, look: Looker | None) -> Metadata | None:
    if draft.path is not None:
        return read_metadata(draft.path)
    return look(draft.file) if look is not None and draft.file is not None else None


def _is_target(target: Target, draft: Candidate) -> bool:
    if target.file is not None and draft.file is not None:
        return target.file.sha256 == draft.file.sha256
    path = target.metadata.path if target.metadata is not None else None
    if path is None or draft.path is None or not path.exists():
        return False
    return path.samefile(draft.path)


def _vouched(target: Target, draft: Candidate) -> bool:
    """Whether a pair of the catalogue consists of these two."""
    file = target.file
    return file is not None and any(pair.target.sha256 == file.sha256 for pair in draft.pairs)


def _rank(one: Suggestion) -> tuple[int, float, int, str]:
    speedup = one.speedup
    if speedup is None:
        return 1, -(one.assumed or 0.0), one.draft.bytes, one.draft.name
    return (0 if speedup > 1 else 2), -speedup, one.draft.bytes, one.draft.name


def _clause(message: str) -> str:
    return message[:1].lower() + message[1:].removesuffix(".")
