"""Which library computes a pair: the one asked for, or that which is expected to take the least time here.

A choice is made where a pair is loaded, and stays until it is loaded anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.compute.library import Library
from localspec.engine.contest import Contest
from localspec.engine.draft_copy import BUSY
from localspec.engine.engine import Engine
from localspec.engine.libraries import (
    ANOTHER,
    AUTO,
    installed,
    libraries,
    library_for,
    reference,
)
from localspec.engine.options import EngineOptions, Notify
from localspec.engine.together import why_not_together
from localspec.engine.trust import Comparison, Subject, compare, forget
from localspec.errors import (
    BackendError,
    DecodeError,
    LocalspecError,
    MemoryShort,
    ModelLoadError,
)
from localspec.gguf.metadata import Metadata
from localspec.pairs.check import check_pair
from localspec.system.cores import busy_share
from localspec.system.load_watch import check_cancelled

LIKELY = ("ik",)
"""Libraries that are worth comparing with the reference where a processor computes: with a 4-bit file on AVX2 a pass
over one token took 0.9 of its time, over four 0.5."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """library: that computes. reason: why this one, a clause. warnings: sentences for the user.

    instead: which computes if this one turns out to be unable to load the files; None where it was asked for.
    plain_share: the time of a token of the fastest plain decoding that is known here, as a share of this library's.
    """

    library: Library
    reason: str
    warnings: tuple[str, ...] = ()
    instead: Library | None = None
    plain_share: float = 1.0

    @property
    def described(self) -> dict[str, object]:
        """For JSON."""
        return {"name": self.library.name, "reason": self.reason}

    def without(self, error: LocalspecError) -> Choice:
        """The choice after a load that failed with `error`. Raises it where there is no other library."""
        if self.instead is None or isinstance(error, MemoryShort):
            raise error
        said = (
            f"{self.library.name} could not load the files, so {self.instead.name} computes: {error.message}"
        )
        return Choice(self.instead, f"{self.library.name} could not load the files", (*self.warnings, said))


def choose(
    target: Metadata,
    draft: Metadata | None,
    options: EngineOptions,
    home: Path | None,
    notify: Notify = lambda sentence: None,
) -> Choice:
    """What shall compute; where that was never looked at, libraries are compared now (seconds, once for a file).

    Raises what `library_for` raises, `BackendError` where the one asked for does not run here, and `PairingError` for a
    draft that cannot draft for the target, before anything is compared.
    """

    def compare_now(library: Library, model: Metadata) -> Comparison:
        if draft is not None:
            check_pair(target, draft, cross_vocabulary=not options.no_cross_vocabulary)
        drafts = (
            []
            if draft is None or options.no_draft
            else [Subject(draft, replace(options, strict=False), True)]
        )
        subjects = [Subject(target, options), *drafts] if model is target else drafts
        return compare(subjects, library, home, notify)

    return _chosen(target, draft, options, home, compare_now)


def known_choice(
    target: Metadata, draft: Metadata | None, options: EngineOptions, home: Path | None
) -> Choice:
    """What would compute by what is known now. Milliseconds; compares nothing. Raises what `library_for` raises."""
    return _chosen(target, draft, options, home, None)


def look_again(target: Metadata, draft: Metadata | None, options: EngineOptions, home: Path | None) -> None:
    """Let the next load compare libraries anew."""
    for library in libraries():
        if library.key in LIKELY and installed(library):
            forget(target, options, library, home)
            if draft is not None:
                forget(draft, replace(options, strict=False), library, home)


def loaded_by_choice(choice: Choice, load: Callable[[Library], Engine]) -> tuple[Engine, Choice]:
    """What `load` makes of the choice, or of the library that stands in for it."""
    try:
        return load(choice.library), choice
    except (ModelLoadError, BackendError, DecodeError) as error:
        check_cancelled()
        choice = choice.without(error)
        log.info("%s", choice.reason)
        return load(choice.library), choice


def _chosen(
    target: Metadata,
    draft: Metadata | None,
    options: EngineOptions,
    home: Path | None,
    compare: Callable[[Library, Metadata], Comparison] | None,
) -> Choice:
    """compare: compares a library with the reference now; None: only what is known counts."""
    if options.rpc or options.draft_rpc:
        asked = library_for(target, draft, reference().key)
        return Choice(asked, "the only one that computes with RPC servers")
    first = library_for(target, draft, options.library)
    other = next((library for library in libraries() if library.key in LIKELY), first)
    if options.library != AUTO:
        if compare is not None and (reason := why_not_together(first, home)):
            raise BackendError(reason, ANOTHER)
        return _asked_for(first, Contest(libraries()[0], other, target, draft, options, home))
    if other is first or not installed(other):
        return Choice(first, "the only one here that can compute this")
    contest, is_new = Contest(first, other, target, draft, options, home), False
    found = None if contest.hopeless else contest.known
    if why := contest.hopeless or ("" if compare is None else contest.refusals(compared=found is not None)):
        return Choice(first, why)
    if compare is not None:
        if reason := why_not_together(other, home):
            return Choice(
                first, f"{other.name} does not run here", (f"{other.name} is left aside: {reason}",)
            )
        if found is None or not (found.settled or busy_share() > BUSY):
            found, is_new = compare(other, target), True
    if found is None:
        return Choice(first, f"{other.name} was not compared with it here yet")
    if not found.trusted:
        verdict = "left aside for" if found.fault else "not trusted with"
        why = f"{other.name} is {verdict} {target.path.name}: {found.figures}"
        return Choice(first, why, (f"{why}; {first.name} computes.",) if is_new else ())
    fault, tried_now = _fault_of_draft(contest, compare)
    if fault:
        said = (f"{fault}; {first.name} computes.",) if is_new or tried_now else ()
        return Choice(first, fault, said)
    controllers = contest.controllers(found)
    if controllers is None:
        return Choice(first, f"{other.name} was not timed here")
    expected = contest.expected(controllers)
    chosen = contest.winner(expected, remember=compare is not None)
    than = other if chosen is first else first
    share = expected[chosen.key] / expected[than.key]
    reason = f"a token is expected to take {share:.2f} of the time that {than.name} takes here"
    return Choice(
        chosen,
        reason,
        instead=first if chosen is other else None,
        plain_share=contest.plain_share(controllers, chosen),
    )


def _fault_of_draft(
    contest: Contest, compare: Callable[[Library, Metadata], Comparison] | None
) -> tuple[str, bool]:
    """Why the other library is left aside for the draft, or "", and whether that was found out just now.

    What it computes may differ, for the target checks it; but it must not end the process, as numbers of a damaged file
    do.
    """
    draft = contest.draft
    if draft is None or contest.options.no_draft:
        return "", False
    found, is_new = contest.known_of_draft, False
    if found is None and compare is not None:
        found, is_new = compare(contest.other, draft), True
    if found is None or not found.fault:
        return "", is_new
    return f"{contest.other.name} is left aside for {draft.path.name}: {found.fault.rstrip('.')}", is_new


def _asked_for(library: Library, contest: Contest) -> Choice:
    """Nothing is compared for it; what is known of the other one says how fast plain decoding could be."""
    found = contest.known if installed(contest.other) and not contest.hopeless else None
    controllers = contest.controllers(found) if found is not None and found.trusted else None
    share = 1.0 if controllers is None else contest.plain_share(controllers, library)
    warnings: tuple[str, ...] = ()
    if library is contest.other and found is not None and not found.trusted:
        warnings = (
            f"{library.name} was asked for, and is not trusted with {contest.target.path.name}: {found.figures}.",
        )
    return Choice(library, "asked for", warnings, plain_share=share)
