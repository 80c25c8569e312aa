"""HiddenStates: what the target computed at each token, for its prediction layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from localspec.decoding.session import Span

States = npt.NDArray[np.float32]


class HiddenStates:
    """The target's hidden state at each cell of a sequence, which its head reads beside the next token.

    Kept as the upper halves of float32 numbers. Of cells that were taken back from saved ones, and never seen, they
    are zeros, as before the first token.
    """

    def __init__(self, n_cells: int, width: int) -> None:
        self._shape = n_cells, width
        self._rows: dict[int, npt.NDArray[np.uint16]] = {}
        self._known: dict[int, int] = {}

    def known(self, sequence_id: int) -> int:
        """Of how many tokens of the sequence, counted from the first: of some, perhaps, whose cells are read again."""
        return self._known.get(sequence_id, 0)

    def take(self, spans: Sequence[Span], states: States) -> None:
        """What a pass over these spans gave, one row for each token."""
        end = 0
        for span in spans:
            begin, end = end, end + len(span.tokens)
            rows = self._rows.get(span.sequence_id)
            if rows is None:
                rows = self._rows[span.sequence_id] = np.zeros(self._shape, np.uint16)
            rows[self.known(span.sequence_id) : span.start] = 0
            last = span.start + end - begin
            rows[span.start : last] = (states[begin:end].view(np.uint32) >> 16).astype(np.uint16)
            self._known[span.sequence_id] = last

    def cut(self, sequence_id: int, length: int) -> None:
        """The tokens from `length` on do not stand."""
        self._known[sequence_id] = min(self.known(sequence_id), length)

    def forget(self, sequence_id: int, length: int) -> None:
        """The cells are `length` others, of which nothing was seen."""
        if sequence_id in self._rows:
            self._rows[sequence_id][:length] = 0
        self._known[sequence_id] = length

    def before(self, sequence_id: int, start: int, count: int) -> States:
        """For each of `count` positions from `start` on the state at the one before it, of shape (count, width)."""
        found = np.zeros((count, self._shape[1]), np.float32)
        rows = self._rows.get(sequence_id)
        first, last = max(start - 1, 0), min(start - 1 + count, self.known(sequence_id))
        if rows is not None and last > first:
            halves = rows[first:last].astype(np.uint32) << 16
            found[first - (start - 1) : last - (start - 1)] = halves.view(np.float32)
        return found
