"""Width classes on a context whose kernels are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from localspec.decoding.classes import TOKENS, WidthClass, width_classes
from localspec.engine.strict import Widths, describe_classes, usable_widths

from .fakes import FakeContext

V = 5
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32, 33, 64)


class KernelContext(FakeContext):
    """Rows depend on the kernel that computes them: kernel(width, row) -> offset of a row's first logit.

    memory: how much of the offsets of earlier cells a row reads, as attention does.
    """

    def __init__(self, kernel: Callable[[int, int], float], memory: float = 0.0, n_ctx: int = 512) -> None:
        super().__init__(
            lambda prefix: np.arange(V, dtype=np.float32), V, n_ctx=n_ctx, n_batch=64, n_outputs=64
        )
        self._kernel, self._memory = kernel, memory
        self.written: list[float] = []

    def decode(self, spans):
        (span,) = spans
        rows = super().decode(spans)[0]
        width = len(span.tokens)
        del self.written[span.start :]
        shaped = []
        for index in range(width):
            offset = self._kernel(width, index)
            seen = sum(self.written) * self._memory
            self.written.append(offset)
            if index >= width - span.num_logits:
                row = rows[index - (width - span.num_logits)].copy()
                row[0] += offset + seen
                shaped.append(row)
        return [shaped]


def found(kernel, widths=WIDTHS, length=0, memory=0.0):
    context = KernelContext(kernel, memory)
    classes = width_classes(context, widths, length)
    assert context.cells[0] == []  # left empty
    return classes


def test_one_kernel_is_one_class():
    assert found(lambda width, row: 0.0) == [WidthClass(WIDTHS, 0.0)]


@pytest.mark.parametrize("length", [0, 1, 63, 64, 100, 300])
def test_groups_are_found_with_their_distance(length):
    def kernel(width, row):
        return 0.0 if width < 4 else 0.5 if width < 8 else 0.25

    assert found(kernel, length=length) == [
        WidthClass((1, 2, 3), 0.0),
        WidthClass((4, 5, 6, 7), 0.5),
        WidthClass((8, 9, 12, 16, 17, 32, 33, 64), 0.25),
    ]


def grouped(size):
    """Rows in groups of `size`; those left over behind the last whole group are computed one by one."""
    return lambda width, row: 0.5 if row < width - width % size else 0.0


def test_left_over_rows_make_a_width_a_class_of_its_own():
    assert found(grouped(8), (1, 2, 7, 8, 9, 12, 16)) == [
        WidthClass((1, 2, 7), 0.0),
        WidthClass((8, 16), 0.5),
        WidthClass((9,), 0.5),
        WidthClass((12,), 0.5),
    ]


@pytest.mark.parametrize("wide", [17, 31, 33, 47, 63])
def test_left_over_rows_behind_many_whole_groups(wide):
    """A row far behind in a wide pass counts like any other: a prompt is read in such passes."""
    classes = found(grouped(16), (1, 16, 32, wide))
    assert WidthClass((16, 32), 0.5) in classes
    assert WidthClass((wide,), 0.5) in classes
    only_the_last = found(lambda width, row: 0.5 * (width == wide and row == wide - 1), (1, 16, 32, wide))
    assert only_the_last == [WidthClass((1, 16, 32), 0.0), WidthClass((wide,), 0.5)]


@pytest.mark.parametrize("first", [2, 3, 12, 16, 17, 33, 64])
def test_a_first_row_of_its_own(first):
    classes = found(lambda width, row: 0.125 * (width == first and row == 0), WIDTHS)
    assert sorted(len(group.widths) for group in classes) == [1, len(WIDTHS) - 1]
    assert WidthClass((first,), 0.125) in classes


def test_what_a_pass_leaves_for_the_next_is_found():
    """All rows of a pass equal, but its cells differ for those who read them: attention sees the difference."""

    class Leaving(KernelContext):
        def decode(self, spans):
            rows = super().decode(spans)
            if len(spans[0].tokens) == 4:
                self.written[-1] += 1.0  # not seen in this pass
            return rows

    context = Leaving(lambda width, row: 0.0, memory=0.5)
    classes = width_classes(context, (1, 2, 4, 8), 0)
    assert [group.widths for group in classes] == [(1, 2, 8), (4,)]


def test_a_one_token_pass_that_is_split_behind_a_long_context():
    """As attention over a 16-bit V cache does past 256 cells: the same widths, another context, another answer."""

    class Splitting(KernelContext):
        def decode(self, spans):
            rows = super().decode(spans)
            if len(spans[0].tokens) == 1 and spans[0].start >= 256:
                rows[0][-1][0] += 0.25
            return rows

    for length, expected in ((0, [WIDTHS]), (300, [(1,), WIDTHS[1:]])):
        classes = width_classes(Splitting(lambda width, row: 0.0), WIDTHS, length)
        assert [group.widths for group in classes] == expected


def test_no_order_of_widths_is_needed():
    assert found(grouped(4), (8, 1, 4, 2)) == [WidthClass((1, 2), 0.0), WidthClass((4, 8), 0.5)]


def test_enough_rows_are_compared_to_see_every_place_of_a_narrow_pass():
    for width in range(2, TOKENS + 1):
        for place in range(width):
            classes = found(lambda w, row, at=(width, place): 0.5 * ((w, row) == at), (1, width))
            assert len(classes) == 2, (width, place)


# --- what they are good for


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([WIDTHS], Widths(1, 64)),
        ([(1, 2, 3, 4, 5, 6, 7), (8, 9, 12, 16, 17, 32, 33, 64)], Widths(1, 7)),
        ([(1,), WIDTHS[1:]], Widths(2, 64)),
        ([(1, 2, 3), (4, 5, 6, 7), (8, 9, 12, 16, 17, 32, 33, 64)], None),
        ([(1, 2, 3, 4), (5, 6, 7, 8, 9, 12, 16, 17, 32, 33, 64)], Widths(1, 4)),
        ([(1, 3), (2, 4, 5, 6), (7, 8, 9, 12, 16, 17, 32, 33, 64)], None),
        ([(1, *WIDTHS[2:]), (2,)], None),
    ],
)
def test_usable_widths(groups, expected):
    classes = [WidthClass(tuple(group), 0.5 * bool(index)) for index, group in enumerate(groups)]
    assert usable_widths(classes) == expected


def test_classes_in_words():
    classes = [WidthClass((1, 2), 0.0), WidthClass((4, 8), 0.5)]
    assert describe_classes(classes) == "{1, 2} {4, 8} off by 0.5"
    assert str(Widths(2, 7)) == "2 to 7"
