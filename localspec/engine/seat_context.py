"""SeatContext: one sequence of a context that several answers share, as if it were a context of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.compute.context_options import ContextOptions
from localspec.compute.library import Context, Weights
from localspec.decoding.company import Company
from localspec.decoding.rollback import Rollback
from localspec.decoding.sampling import Logits
from localspec.decoding.session import Sharing, Span
from localspec.decoding.shared_passes import SharedPasses
from localspec.decoding.stats import Batch


@dataclass
class SeatClock:
    """waited: seconds in which one seat waited for what belongs to others, on both models."""

    waited: float = 0.0


class SeatContext:
    """What a session of one seat computes with: its passes are made together with those of the other seats.

    whole: the context, which holds `n_ctx` cells for each seat. shared_batch: the latest pass, where others were in it.
    clock: the seat's own, for both models. cancelled: asked when a pass of all was stopped.
    """

    def __init__(
        self, whole: Context, passes: SharedPasses, n_ctx: int, num_seats: int, clock: SeatClock
    ) -> None:
        self.whole, self.passes, self.n_ctx, self.clock = whole, passes, n_ctx, clock
        self.n_vocab = whole.n_vocab
        # Where passes are even, a wide one is its own.
        self.n_outputs = max(whole.n_outputs // (1 if passes.is_even(whole) else num_seats), 1)
        self.cancelled: Callable[[], bool] = lambda: False
        self.shared_batch: Batch | None = None
        self._width = 1
        self.decode_seconds = 0.0

    @property
    def n_batch(self) -> int:
        """Tokens of one pass: a piece of a prompt must not hold up the others."""
        return self.passes.piece(self.whole)

    def decode(self, spans: Sequence[Span]) -> list[list[Logits]]:
        """One pass over a single span, and what the others wait for."""
        (span,) = spans
        started = time.perf_counter()
        made = self.passes.decode(self.whole, span, self.cancelled)
        assert made.found is not None, "a pass that did not fail"
        self.shared_batch = None if made.alone else made.batch
        self._width = len(span.tokens)
        self.clock.waited += time.perf_counter() - started - made.share
        self.decode_seconds += made.share
        return [made.found]

    @property
    def waited(self) -> float:
        """Seconds in which this seat waited for what belongs to others, in all of its contexts."""
        return self.clock.waited

    @property
    def company(self) -> Company:
        """Who takes part in passes now."""
        return self.passes.company(self._width)

    @property
    def weights(self) -> Weights:
        """Those it computes with."""
        return self.whole.weights

    @property
    def options(self) -> ContextOptions:
        """As the whole was opened with."""
        return self.whole.options

    @property
    def threads(self) -> int:
        """CPU threads of the next pass."""
        return self.whole.threads

    @property
    def can_cut(self) -> bool:
        """Whether cells can be forgotten from any place on."""
        return self.whole.can_cut

    @property
    def rollback(self) -> Rollback:
        """How it takes tokens back that it has read."""
        return self.whole.rollback

    @property
    def rollback_seconds(self) -> float:
        """Seconds spent on that so far, apart from passes."""
        return self.whole.rollback_seconds

    @property
    def whole_states(self) -> bool:
        """Whether saved cells can only be used whole."""
        return self.whole.whole_states

    def set_threads(self, count: int) -> None:
        """Give the passes from now on so many threads."""
        self.whole.set_threads(count)

    def truncate(self, sequence_id: int, length: int) -> int:
        """Forget the cells from `length` on; returns how many are left."""
        return self.whole.truncate(sequence_id, length)

    def length(self, sequence_id: int) -> int:
        """Cells that the sequence holds."""
        return self.whole.length(sequence_id)

    def copy_cells(self, source: int, destination: int, count: int) -> int:
        """Let an empty sequence hold the first `count` cells of another; returns how many it then holds."""
        return self.whole.copy_cells(source, destination, count) if isinstance(self.whole, Sharing) else 0

    def state_bytes(self, sequence_id: int) -> int:
        """Bytes that `save_state` would take, about."""
        return self.whole.state_bytes(sequence_id)

    def save_state(self, sequence_id: int) -> bytes:
        """The cells of a sequence."""
        return self.whole.save_state(sequence_id)

    def load_state(self, data: bytes, sequence_id: int) -> int:
        """Put saved cells in the place of the sequence's own; returns how many tokens they are."""
        return self.whole.load_state(data, sequence_id)

    def close(self) -> None:
        """The whole is closed by who opened it."""
