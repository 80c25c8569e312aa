"""NativeBatch: the tokens of one pass, as a library takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.decoding.session import Span


class NativeBatch:
    """Room for `size` tokens, filled for each pass anew.

    native: the library's own structure. lib: its functions. wanted: for each token 1 where its row is asked for.
    """

    def __init__(self, lib: Any, size: int) -> None:
        self._lib = lib
        self.native: Any = lib.llama_batch_init(size, 0, 1)
        # numpy views of the batch's arrays, so that filling it costs no Python loop.
        view, shape = np.ctypeslib.as_array, (size,)
        self._token, self._pos = view(self.native.token, shape), view(self.native.pos, shape)
        self.wanted, n_seq = view(self.native.logits, shape), view(self.native.n_seq_id, shape)
        n_seq[:] = 1

    def fill(self, spans: Sequence[Span]) -> int:
        """Put spans in it that fit; returns how many tokens they are."""
        end = 0
        for span in spans:
            begin, end = end, end + len(span.tokens)
            self._token[begin:end] = span.tokens
            self._pos[begin:end] = np.arange(span.start, span.start + end - begin)
            self.wanted[begin:end] = 0
            last = end - span.num_padding
            self.wanted[last - span.num_logits : last] = 1
            if span.min_rows > span.num_logits:
                self.wanted[max(end - span.min_rows, begin) : end] = 1
            for index in range(begin, end):
                self.native.seq_id[index][0] = span.sequence_id
        self.native.n_tokens = end
        return end

    def free(self) -> None:
        """Give the memory back; once."""
        self._lib.llama_batch_free(self.native)
