"""Seats: several answers at a time on one engine's weights, each with a sequence of its own in shared contexts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localspec.compute.library import Context, HeadContext
from localspec.decoding.sampling import Logits, kl_divergence
from localspec.decoding.session import Session, Span, common_prefix
from localspec.decoding.shared_passes import SharedPasses
from localspec.engine.contexts import Opener, govern
from localspec.engine.libraries import reference
from localspec.engine.memory import Load, check_memory, memory_estimate, seat_loads
from localspec.engine.seat_context import SeatClock, SeatContext
from localspec.engine.strict import Widths
from localspec.engine.trust import MOST_DIVERGENCE
from localspec.errors import MemoryShort, ModelLoadError

if TYPE_CHECKING:
    from localspec.engine.engine import Engine

log = logging.getLogger(__name__)
MOST_SEATS = 4
"""Of "auto": four answers at a time already take all that a processor gains by shared passes."""
MEMORY_SHARE = 0.5
"""Of the free memory, for the cells of "auto"."""
WORTH_COPYING = 16
"""Tokens in another seat's cells from which on they are shared and not read again."""
TEXT, ROWS = 48, 8
"""Tokens by which shared contexts are compared with the engine's own, and the last ones whose rows are."""


@dataclass(frozen=True)
class SeatState:
    """busy: an answer has it. tokens: in its cells."""

    busy: bool
    tokens: int


class Seats:
    """Opened on an engine; closed before it.

    engines: one for each seat, with the sessions of its sequence. passes: where their passes meet.
    Raises `MemoryShort` or `ModelLoadError`, the latter also where the contexts compute other logits.
    """

    def __init__(self, engine: Engine, count: int) -> None:
        self._whole = engine
        with ExitStack() as opened:
            opener = Opener(engine.library, engine.cancel, opened)
            loads = shared_loads(engine, count)
            if engine.options.check_memory:
                check_memory(loads, loaded=True, each=max(one.n_ctx for one in _contexts(engine)))
            wholes = [
                opener.context(context.weights, load.options)
                for context, load in zip(_contexts(engine), loads, strict=True)
            ]
            govern(engine.threads, wholes, opened)
            if engine.options.strict:
                widths = Widths(engine.session.min_width, engine.target.n_batch)
                engine.check_seats(
                    wholes[0].weights, loads[0].options, widths, engine.cancel, threads=engine.threads
                )
            else:
                _check_alike(engine, wholes[0])
            even = [whole for whole in wholes if whole.options.separate or not whole.can_cut]
            self.passes = SharedPasses(wholes[::-1], engine.cancel.clear, even)
            self.engines = [self._seat(index, count, wholes) for index in range(count)]
            self._opened = opened.pop_all()

    def __len__(self) -> int:
        return len(self.engines)

    def _seat(self, index: int, count: int, wholes: Sequence[Context]) -> Engine:
        clock = SeatClock()
        own = [
            SeatContext(whole, self.passes, context.n_ctx, count, clock)
            for context, whole in zip(_contexts(self._whole), wholes, strict=True)
        ]
        session = Session(own[0], index, min_width=self._whole.session.min_width, threads=self._whole.threads)
        draft = Session(own[1], index, threads=self._whole.threads) if len(own) > 1 else None
        return self._whole.seated(session, draft)

    def best(self, free: Sequence[int], prompt: Sequence[int]) -> int:
        """Of the free seats the one that loses least of what it holds, then the one that begins most as the prompt.

        What another one holds of the prompt is shared for nothing (`share`), so a common system prompt does not draw
        all conversations to one seat.
        """

        def lost_and_missing(seat: int) -> tuple[int, int]:
            shared = self._shared(seat, prompt)
            return len(self._tokens(seat)) - shared, -shared

        return min(free, key=lost_and_missing)

    def holding(self, tokens: Sequence[int]) -> Engine:
        """The seat whose cells hold most of these tokens."""
        return self.engines[max(range(len(self)), key=lambda seat: self._shared(seat, tokens))]

    def take(self, seat: int, cancelled: Callable[[], bool]) -> Engine:
        """The engine of a seat, for an answer. cancelled: whether that was ended."""
        engine = self.engines[seat]
        for session in engine.sessions.values():
            assert isinstance(session.context, SeatContext), "a session of a seat"
            session.context.cancelled = cancelled
        return engine

    def share(self, seat: int, prompt: Sequence[int]) -> None:
        """Let the seat begin with cells of another one that hold more of the prompt; nothing is read for it.

        Only from inside `passes`.
        """
        for name, session in self.engines[seat].sessions.items():
            if session.can_go_back.kind != "cut":
                continue  # a running state has no beginning
            read = self.engines[seat].read_by(name, prompt)
            mine = common_prefix(session.tokens, read)
            others = [
                engine.sessions[name] for engine in self.engines if engine.sessions[name] is not session
            ]
            best = max(others, key=lambda other: common_prefix(other.tokens, read), default=None)
            if best is None:
                continue
            count = min(common_prefix(best.tokens, read), len(read) - 1)
            if count - mine >= WORTH_COPYING:
                session.borrow(best, count)

    def set_aside(self, busy: Collection[int]) -> None:
        """Keep what idle seats hold outside of the contexts, where the library's passes would look through it.

        busy: seats with answers. Only from inside `passes`, and done where nobody else waits for it there.
        """
        if self._whole.library.reads_all_cells and self.passes.num_inside == 1:
            for seat, engine in enumerate(self.engines):
                if seat not in busy:
                    engine.prefixes.set_aside()

    @property
    def held(self) -> list[int]:
        """Tokens in the cells of each."""
        return [len(engine.session.tokens) for engine in self.engines]

    def forget(self) -> None:
        """Empty the cells of all seats. Only while no answer runs."""
        for engine in self.engines:
            for session in engine.sessions.values():
                session.rollback(0)

    def close(self) -> None:
        """Free the contexts. Idempotent."""
        self._opened.close()

    def _shared(self, seat: int, prompt: Sequence[int]) -> int:
        return common_prefix(self._tokens(seat), prompt)

    def _tokens(self, seat: int) -> list[int]:
        return self.engines[seat].session.tokens


def why_one_seat(engine: Engine) -> str:
    """Why answers run one at a time on this engine, as a clause, or ""."""
    if engine.drafts_itself:
        return "the model's own prediction layers draft for one answer at a time"
    for context in _contexts(engine):
        metadata, options = context.weights.metadata, context.options
        if reason := engine.library.why_one_sequence(metadata, options):
            return reason
        if engine.options.strict and context is engine.target:
            separate = replace(options, separate=True)
            if reason := engine.library.why_one_sequence(metadata, separate):
                return f"in strict mode {reason}"
    return ""


def seats_that_fit(engine: Engine) -> int:
    """For "auto": as many seats as the free memory has room for, up to MOST_SEATS."""
    if why_one_seat(engine):
        return 1
    for count in range(MOST_SEATS, 1, -1):
        estimate = memory_estimate(shared_loads(engine, count))
        if estimate.kv_cache + estimate.compute < MEMORY_SHARE * estimate.available:
            return count
    return 1


def open_seats(engine: Engine, wanted: int | str) -> tuple[Seats | None, str]:
    """The seats, None for one answer at a time, and a sentence where it is fewer than were asked for.

    wanted: a number, or "auto". Raises `MemoryShort` for a number that memory has no room for, and `ModelLoadError`.
    """
    count = seats_that_fit(engine) if isinstance(wanted, str) else wanted
    if count < 2:
        return None, ""
    if reason := why_one_seat(engine):
        return None, f"parallel is {count}, and one answer runs at a time: {reason}."
    try:
        return Seats(engine, count), ""
    except (MemoryShort, ModelLoadError) as error:
        if isinstance(wanted, int):
            raise
        return None, f"One answer runs at a time: {error.message}"


def shared_loads(engine: Engine, count: int) -> list[Load]:
    """The contexts that so many seats share."""
    loads = [
        Load(
            context.weights.metadata,
            replace(context.options, n_ctx=context.n_ctx),
            context.weights.gpu_layers,
        )
        for context in _contexts(engine)
    ]
    return seat_loads(loads, count, strict=engine.options.strict)


def _check_alike(engine: Engine, whole: Context) -> None:
    """Compare the target's shared context with the engine's own: a library may compute several sequences by other
    kernels than those that it was trusted for, and running states of several may mix. Raises `ModelLoadError`.
    """
    if engine.library.key == reference().key and whole.can_cut:
        return
    count = min(TEXT, engine.target.n_ctx)
    ids = [(7 * place) % min(whole.n_vocab, 1000) for place in range(count)]
    texts = ids[::-1], ids
    alone = [_rows(engine.target, [text], [0]) for text in texts]
    together = _rows(whole, texts, [0, whole.options.n_sequences - 1])
    divergence = float(kl_divergence(np.concatenate(alone), together).mean())
    if not divergence <= MOST_DIVERGENCE:
        raise ModelLoadError(
            f"{engine.library.name} computes several sequences of {whole.weights.path.name} otherwise than one "
            f"(mean KL divergence {divergence:.2g}).",
            "Load it with parallel=1, or with library='llama'.",
            path=str(whole.weights.path),
        )


def _rows(
    context: Context, texts: Sequence[Sequence[int]], sequence_ids: Sequence[int]
) -> NDArray[np.float32]:
    """The last rows of each text, (texts * ROWS or fewer, V), read by a sequence of its own, some tokens of all in one
    pass.
    """
    found: list[list[Logits]] = [[] for _ in texts]
    for start in range(0, len(texts[0]), ROWS):
        spans = [
            Span(sequence_id, tuple(text[start : start + ROWS]), start, len(text[start : start + ROWS]))
            for text, sequence_id in zip(texts, sequence_ids, strict=True)
        ]
        found = context.decode(spans)
    for sequence_id in sequence_ids:
        context.truncate(sequence_id, 0)
    return np.stack([row for rows in found for row in rows])


def _contexts(engine: Engine) -> list[Context]:
    """The target's, and that of a draft model that drafts."""
    draft = engine.draft if engine.draft is not None and not engine.no_draft_reason else None
    assert not isinstance(draft, HeadContext) or engine.drafts_itself, "a head"
    return [engine.target] if draft is None else [engine.target, draft]
