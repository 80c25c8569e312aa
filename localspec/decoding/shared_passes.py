"""SharedPasses: several answers at once, each in a thread of its own, whose passes are made together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from localspec.decoding.company import ALONE, Company
from localspec.decoding.sampling import Logits
from localspec.decoding.session import Context, Span
from localspec.decoding.stats import Batch
from localspec.errors import DecodeCancelled, DecodeError, LocalspecError

ALONE_SECONDS, SHARED_SECONDS = 0.8, 0.3
"""What a piece of a prompt may take: where nobody else is inside, whom a newcomer has to wait for; and beside others,
whose answers stand still meanwhile."""
FIRST_ROWS, LEAST_ROWS = 32, 8
"""Tokens of a piece before it is known what they take, and at least."""
WIDE = 8
"""Tokens of a pass from which on it says what a piece of a prompt takes."""
FADE = 0.3
"""Share of what is known of wide passes that the latest one decides."""


NO_PASS = Batch(0, 0.0)


@dataclass
class Wanted:
    """A span that waits for its pass. found: its rows, once it was made; batch: the whole pass; alone: in it."""

    context: Context
    span: Span
    cancelled: Callable[[], bool]
    found: list[Logits] | None = None
    error: BaseException | None = None
    batch: Batch = NO_PASS
    alone: bool = True

    @property
    def is_over(self) -> bool:
        """Whether its pass was made, or failed."""
        return self.found is not None or self.error is not None

    @property
    def share(self) -> float:
        """Seconds of the pass that are its own, by width."""
        return self.batch.seconds * len(self.span.tokens) / max(self.batch.width, 1)


@dataclass
class _Pace:
    """What wide passes of a context take."""

    seconds_per_row: float | None = None
    reading: int = 1
    members: float = 1.0

    def observe(self, spans: Sequence[Span], batch: Batch) -> None:
        self.reading = max(sum(len(span.tokens) >= WIDE for span in spans), 1)
        self.members += FADE * (len(spans) - self.members)
        if batch.width >= WIDE:
            known, now = self.seconds_per_row, batch.seconds / batch.width
            self.seconds_per_row = now if known is None else known + FADE * (now - known)


@dataclass
class SharedPasses:
    """Whoever is inside has the turn until it asks for a pass: no two threads compute, sample or cut cells at once.

    A pass is made when all who are inside wait for one, by the last of them: first on the draft model, so that those
    that still draft come to their pass of the target, which is then one for all.

    contexts: those that go first come first. flag_clear: lets passes run that a cancel of all of them stopped.
    even: contexts of which a pass holds spans of one length only: they would compute others in several pieces.
    """

    contexts: Sequence[Context]
    flag_clear: Callable[[], None] = lambda: None
    even: Sequence[Context] = ()
    _turn: threading.Condition = field(default_factory=threading.Condition, repr=False)
    _inside: set[int] = field(default_factory=set, repr=False)
    _arriving: list[int] = field(default_factory=list, repr=False)
    _waiting: list[Wanted] = field(default_factory=list, repr=False)
    _paces: dict[int, _Pace] = field(default_factory=dict, repr=False)
    _widths: dict[int, int] = field(default_factory=dict, repr=False)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Take part, from this thread, until the block is left."""
        me = threading.get_ident()
        self._arriving.append(me)  # or those inside might go on and on among themselves
        try:
            self._turn.acquire()
        finally:
            self._arriving.remove(me)
        try:
            self._inside.add(me)
            yield
        finally:
            self._inside.discard(me)
            self._turn.notify_all()
            self._turn.release()

    @property
    def num_inside(self) -> int:
        """Answers that take part."""
        return len(self._inside)

    def decode(self, context: Context, span: Span, cancelled: Callable[[], bool] = lambda: False) -> Wanted:
        """The span with its rows and the pass that it shared; for who is not inside a pass of its own.

        Raises what `Context.decode` raises; an error of one span leaves the others alone.
        """
        mine = Wanted(context, span, cancelled)
        with self._turn:
            if threading.get_ident() not in self._inside:
                self._decode(context, [mine])
                return mine
            self._waiting.append(mine)
            try:
                while not mine.is_over:
                    if len(self._waiting) == len(self._inside) and not self._arriving:
                        self._make_pass()
                        self._turn.notify_all()
                    else:
                        self._turn.wait()
            finally:
                self._waiting = [wanted for wanted in self._waiting if wanted is not mine]
        if mine.error is not None:
            raise mine.error
        return mine

    def piece(self, context: Context) -> int:
        """Tokens that one answer may put into a pass of this context now."""
        pace = self._pace(context)
        alone = len(self._inside) < 2
        seconds = ALONE_SECONDS if alone else SHARED_SECONDS / pace.reading
        if pace.seconds_per_row is None:
            return min(FIRST_ROWS, context.n_batch)
        most = context.n_batch if alone or self.is_even(context) else context.n_batch // len(self._inside)
        return min(max(min(int(seconds / pace.seconds_per_row), most), LEAST_ROWS), context.n_batch)

    def company(self, own_width: int) -> Company:
        """Of the answer whose latest pass of the target was `own_width` wide."""
        if len(self._inside) < 2:
            return ALONE
        draft, target = self.contexts[0], self.contexts[-1]
        mates = self._pace(draft).members if draft is not target else 1.0
        others = self._widths.get(id(target), 0) - own_width
        return Company(len(self._inside), max(others, len(self._inside) - 1), mates, self.is_even(target))

    def _make_pass(self) -> None:
        """One pass for all that wait on the first context that is waited for, as far as they fit."""
        context = next(one for one in self.contexts if any(wanted.context is one for wanted in self._waiting))
        chosen = self._chosen(context)
        try:
            self._decode(context, chosen)
        except DecodeCancelled as error:
            self._heal(context, chosen, error)
        except LocalspecError as error:
            if len(chosen) == 1:
                chosen[0].error = error
            else:
                self._one_by_one(context, chosen)
        except BaseException as error:
            for wanted in chosen:
                wanted.error = error
        self._waiting = [wanted for wanted in self._waiting if not wanted.is_over]

    def _chosen(self, context: Context) -> list[Wanted]:
        """Who has a part in the next pass on this context, in the order of asking; in that of sequences where it is
        even, since such a context computes neighbours together.
        """
        chosen: list[Wanted] = []
        width = rows = 0
        for wanted in self._waiting:
            if wanted.context is not context:
                continue
            wider, more = width + len(wanted.span.tokens), rows + wanted.span.rows
            fits = wider <= context.n_batch and more <= context.n_outputs
            if chosen and self.is_even(context):
                fits = fits and len(wanted.span.tokens) == len(chosen[0].span.tokens)
            if fits or not chosen:
                chosen.append(wanted)
                width, rows = wider, more
        if self.is_even(context):
            chosen.sort(key=lambda wanted: wanted.span.sequence_id)
        return chosen

    def is_even(self, context: Context) -> bool:
        """Whether a pass of it holds spans of one length only."""
        return any(one is context for one in self.even)

    def _decode(self, context: Context, chosen: Sequence[Wanted]) -> None:
        spans = [wanted.span for wanted in chosen]
        started = time.perf_counter()
        found = context.decode(spans)
        batch = Batch(sum(len(span.tokens) for span in spans), time.perf_counter() - started)
        self._pace(context).observe(spans, batch)
        self._widths[id(context)] = batch.width
        for wanted, rows in zip(chosen, found, strict=True):
            wanted.found, wanted.batch, wanted.alone = rows, batch, len(chosen) == 1

    def _heal(self, context: Context, chosen: Sequence[Wanted], error: DecodeCancelled) -> None:
        """A pass was stopped: those that were not cancelled wait for another one."""
        for wanted in chosen:
            self._take_back(wanted)
            if wanted.cancelled():
                wanted.error = error
        if not all(wanted.is_over for wanted in chosen):
            self.flag_clear()

    def _one_by_one(self, context: Context, chosen: Sequence[Wanted]) -> None:
        """What failed together is tried alone, so that the fault of one is no fault of the others."""
        for wanted in chosen:
            self._take_back(wanted)
        for wanted in chosen:
            if wanted.is_over:
                continue
            try:
                self._decode(context, [wanted])
            except BaseException as error:
                wanted.error = error

    def _take_back(self, wanted: Wanted) -> None:
        """What a pass that failed left of this span; it is over where cells before it went too (a sliding window)."""
        start = wanted.span.start
        if wanted.context.truncate(wanted.span.sequence_id, start) != start:
            wanted.error = DecodeError(
                f"A pass was stopped, and the {start} tokens before it were lost with it.",
                "Ask again.",
                code=0,
            )

    def _pace(self, context: Context) -> _Pace:
        return self._paces.setdefault(id(context), _Pace())
