"""A pass of a real library's context: which rows come back, for any spans, padding and sequences in one pass."""

from __future__ import annotations

import contextlib
import random
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest

from localspec.compute.context_options import ContextOptions
from localspec.decoding.session import Session, Span
from localspec.errors import DecodeCancelled, DecodeError, InvalidRequest, ModelLoadError
from localspec.gguf.metadata import read_metadata

from .tinygguf import write_llama

TEXTS = ((5, 9, 14, 200, 31, 77), (8, 120, 44, 3, 3, 17))


@pytest.fixture(scope="module")
def weights(library, tmp_path_factory):
    file = write_llama(tmp_path_factory.mktemp("passes") / "tiny.gguf", seed=1)
    weights = library.open_weights(read_metadata(file))
    yield weights
    weights.close()


@contextmanager
def opened(weights, **options):
    context = weights.open_context(ContextOptions(**{"n_ctx": 64, "n_sequences": 2, "threads": 1, **options}))
    try:
        yield context
    finally:
        context.close()


@pytest.fixture(scope="module")
def rows(weights):
    """Row i of each text, read token by token."""
    with opened(weights) as context:
        return [
            [context.decode([Span(which, (token,), at, 1)])[0][0] for at, token in enumerate(text)]
            for which, text in enumerate(TEXTS)
        ]


def same(found, expected):
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert np.allclose(row, other, atol=0.1) and np.argmax(row) == np.argmax(other)


@pytest.mark.parametrize("num_padding", [0, 1, 4])
@pytest.mark.parametrize("num_logits", [0, 1, 2, 6])
def test_the_last_rows_of_the_tokens_and_none_of_the_padding(weights, rows, num_logits, num_padding):
    with opened(weights) as context:
        span = Span(0, TEXTS[0] + (7,) * num_padding, 0, num_logits, num_padding)
        (found,) = context.decode([span])
        same(found, rows[0][6 - num_logits :])


@pytest.mark.parametrize("counts", [(1, 1), (2, 6), (0, 3), (6, 0)])
@pytest.mark.parametrize("num_padding", [0, 3])
def test_spans_of_several_sequences_in_one_pass(weights, rows, counts, num_padding):
    with opened(weights) as context:
        spans = [
            Span(which, text + (7,) * num_padding, 0, count, num_padding)
            for which, (text, count) in enumerate(zip(TEXTS, counts, strict=True))
        ]
        for found, expected, count in zip(context.decode(spans), rows, counts, strict=True):
            same(found, expected[6 - count :])
        assert context.length(0) == context.length(1) == 6 + num_padding


def test_a_pass_asks_for_no_row_of_the_pass_before(weights, rows):
    """With as many rows as a pass may have, one more would end the process."""
    with opened(weights, n_outputs=3) as context:
        first = Span(0, TEXTS[0], 0, 3)
        for _ in range(2):
            same(context.decode([first])[0], rows[0][3:])
            context.truncate(0, 0)
            found = context.decode([Span(0, (*TEXTS[0][:3], 7, 7, 7), 0, 3, 3)])
            same(found[0], rows[0][:3])
            context.truncate(0, 0)
        assert [bool(wanted) for wanted in context.batch.wanted[:6]] == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("span", "good"),
    [
        (Span(0, (1,) * 16, 48, 1), True),
        (Span(0, (1,) * 17, 48, 1), False),
        (Span(1, (1,), 0, 1), True),
        (Span(2, (1,), 0, 1), False),
        (Span(-1, (1,), 0, 1), False),
        (Span(0, (299,), 48, 1), True),
        (Span(0, (300,), 48, 1), False),
        (Span(0, (-1,), 48, 1), False),
        (Span(0, (1,) * 9, 48, 8), True),
        (Span(0, (1,) * 9, 48, 9), False),
        (Span(0, (), 48, 0), False),
    ],
)
def test_what_would_end_the_process_is_refused_and_nothing_less(weights, span, good):
    """48 cells are taken, 64 there; 300 ids, 8 rows, two sequences."""
    with opened(weights, n_outputs=8) as context:
        context.decode([Span(0, tuple(range(48)), 0, 0)])
        if good:
            assert len(context.decode([span])[0]) == span.num_logits
        else:
            with pytest.raises(DecodeError):
                context.decode([span])
            assert context.length(0) == 48


def test_a_pass_looks_at_its_flag_between_operations(library, tmp_path, monkeypatch):
    """So that a cancelled one does no more than the operation that it is in, however many layers are left."""
    looks, stop_at = [], [0]

    def callback(flag, function_type):
        def look(_data):
            looks.append(1)
            if len(looks) == stop_at[0]:
                flag.set()
            if flag.is_set:
                time.sleep(0.03)  # as the flag itself does, see localspec/ik/cancelling.py
            return flag.is_set

        kept.append(function_type(look))
        return kept[-1]

    kept = []
    monkeypatch.setattr(type(library.cancel_flag()), "callback", callback)
    num_layers, prompt = 20, [Span(0, tuple(range(40)), 0, 1)]
    weights = library.open_weights(read_metadata(write_llama(tmp_path / "deep.gguf", n_layer=num_layers)))
    with contextlib.closing(weights), opened(weights) as context:
        (expected,) = context.decode(prompt)
        whole = len(looks)
        assert whole > 3 * num_layers
        for share in (0.0, 0.5, 0.9):
            context.truncate(0, 0)
            looks.clear()
            stop_at[0] = int(share * whole) + 1
            with pytest.raises(DecodeCancelled):
                context.decode(prompt)
            assert len(looks) <= stop_at[0] + 1
            context.cancel.clear()
            stop_at[0] = 0
            context.truncate(0, 0)
            (again,) = context.decode(prompt)
            assert np.array_equal(again, expected)


def test_a_pass_that_was_stopped_is_no_whole_one_where_the_flag_is_clear_again(
    library, tmp_path, monkeypatch
):
    """As it is where an answer ends and another one begins meanwhile. To ik_llama.cpp both are a pass without fault."""
    looks, stop_at, kept = [], [0], []

    def callback(flag, function_type):
        def look(_data):
            looks.append(1)
            if stops := len(looks) == stop_at[0]:
                flag.set()
                flag.clear()
            return stops

        kept.append(function_type(look))
        return kept[-1]

    monkeypatch.setattr(type(library.cancel_flag()), "callback", callback)
    weights = library.open_weights(read_metadata(write_llama(tmp_path / "deep.gguf", n_layer=20)))
    prompt = [Span(0, tuple(range(40)), 0, 1)]
    with contextlib.closing(weights), opened(weights) as context:
        ((expected,),) = context.decode(prompt)
        whole = len(looks)
        for share in (0.0, 0.5, 0.9):
            looks.clear()
            stop_at[0] = int(share * whole) + 1
            context.truncate(0, 0)
            with pytest.raises(DecodeCancelled):
                context.decode(prompt)
            assert not context.cancel.is_set
        stop_at[0] = 0
        context.truncate(0, 0)
        context.cancel.clear()
        assert np.array_equal(context.decode(prompt)[0][0], expected)


@pytest.mark.parametrize("cleared", [False, True])
def test_what_a_flag_was_is_known_afterwards(library, cleared):
    flag = library.cancel_flag()
    look = flag.look()
    flag.clear()
    assert not flag.was_set_since(look)  # who comes clears it, whatever it is
    flag.set()
    if cleared:
        flag.clear()
    assert flag.was_set_since(look) and flag.is_set is not cleared
    look = flag.look()
    flag.clear()
    assert flag.was_set_since(look) is not cleared
    assert not flag.was_set_since(flag.look())


def test_a_flag_that_is_set_before_there_is_a_context_stops_its_first_pass(weights, library):
    flag = library.cancel_flag()
    flag.set()
    context = weights.open_context(ContextOptions(n_ctx=64, threads=1), flag)
    with contextlib.closing(context):
        with pytest.raises(DecodeCancelled):
            context.decode([Span(0, TEXTS[0], 0, 1)])
        flag.clear()
        context.truncate(0, 0)
        assert len(context.decode([Span(0, TEXTS[0], 0, 6)])[0]) == 6


@pytest.mark.parametrize(
    "sizes", [(7, 3, 1, 0), (64, 8, 8, 0), (300, 16, 16, 5), (257, 300, 4, 0), (256, 15, 1, 40)]
)
def test_a_context_holds_just_what_it_was_made_for(weights, rows, sizes):
    """n_ctx need be no multiple of anything, n_batch be small, and the last cell is of use like the first."""
    n_ctx, n_batch, n_outputs, spare = sizes
    options = {"n_ctx": n_ctx, "n_batch": n_batch, "n_outputs": n_outputs, "spare": spare, "n_sequences": 1}
    with opened(weights, **options) as context:
        at, text = 0, TEXTS[0] * 60
        while at < n_ctx + spare:
            ids = text[at : min(at + context.n_batch, n_ctx + spare)]
            (found,) = context.decode([Span(0, ids, at, 1)])
            at += len(ids)
        assert np.isfinite(found).all() and context.length(0) == n_ctx + spare
        with pytest.raises(DecodeError):
            context.decode([Span(0, (1,), at, 1)])
        assert context.truncate(0, 5) == 5
        same(context.decode([Span(0, TEXTS[0][5:6], 5, 1)])[0], rows[0][5:6])


@pytest.mark.parametrize("name", ["with a space.gguf", "日本 ü.gguf"])
@pytest.mark.parametrize(("use_mmap", "repack"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_file_is_found_by_any_name_and_may_go_once_it_is_open(library, tmp_path, name, use_mmap, repack):
    file = write_llama(tmp_path / name, seed=1)
    weights = library.open_weights(read_metadata(file), use_mmap=use_mmap, repack=repack)
    if sys.platform != "win32":
        file.unlink()
    with contextlib.closing(weights), opened(weights) as context:
        assert len(context.decode([Span(0, TEXTS[0], 0, 1)])[0]) == 1


def test_a_file_that_went_between_its_header_and_its_weights_is_an_error(library, tmp_path):
    facts = read_metadata(file := write_llama(tmp_path / "model.gguf"))
    file.unlink()
    with pytest.raises(ModelLoadError, match=r"model\.gguf"):
        library.open_weights(facts)


def test_closed_weights_open_no_context(library, tmp_path):
    weights = library.open_weights(read_metadata(write_llama(tmp_path / "model.gguf")))
    weights.close()
    weights.close()
    with pytest.raises(ModelLoadError, match="was closed"):
        weights.open_context(ContextOptions(n_ctx=64))


def test_where_narrow_passes_are_padded_no_fewer_rows_are_computed_than_they_are_wide(weights):
    """The last layer computes the wanted rows alone: with a single one other kernels, hence other bits."""
    with opened(weights) as context:
        session = Session(context, min_width=2)
        for tokens, marked in (((1, 2, 3, 4), [0, 0, 1, 1]), ((5,), [1, 1])):
            rows = session.forward(tokens)
            assert len(rows) == 1 and list(context.batch.wanted[: len(marked)]) == marked
        plain = session.forward((6, 7, 8), num_logits=3)
        session.rollback(5)
        for token, row in zip((6, 7, 8), plain, strict=True):
            assert np.allclose(session.forward((token,))[0], row, atol=1e-4)
        session.forward((9,), num_logits=0)
        assert not context.batch.wanted[:2].any()


@pytest.mark.parametrize(("widest", "most"), [(1, 4), (4, 4), (30, 1), (30, 4)])
def test_rows_are_those_of_the_sequence_alone_whatever_others_do(library, weights, widest, most):
    """Sequences that grow, are cut, copied and begun anew, in passes of their own or together.

    ik_llama.cpp left out cells beyond holes among those of others.
    """
    draw, num_sequences, worst = random.Random(widest + most), 4, 0.0
    texts: list[list[int]] = [[] for _ in range(num_sequences)]
    with (
        opened(weights, n_ctx=1600, n_sequences=num_sequences, n_outputs=8, n_batch=160) as context,
        opened(weights, n_ctx=400, n_sequences=2, n_batch=400) as alone,
    ):
        for _ in range(50):
            for index, text in enumerate(texts):
                kept = (
                    draw.randrange(max(len(text) - 6, 0), len(text) + 1) if draw.random() < 0.4 else len(text)
                )
                kept = 0 if draw.random() < 0.05 or len(text) > 300 else kept
                assert context.truncate(index, kept) == kept
                del text[kept:]
            source, destination = draw.sample(range(num_sequences), 2)
            if texts[source] and draw.random() < 0.1:
                half = (len(texts[source]) + 1) // 2
                context.truncate(destination, 0)
                assert context.copy_cells(source, destination, half) == half
                texts[destination] = texts[source][:half]
            spans = []
            for index in draw.sample(range(num_sequences), draw.randint(1, most)):
                new = [draw.randrange(40, 200) for _ in range(draw.randint(1, widest))]
                spans.append(Span(index, tuple(new), len(texts[index]), 1))
                texts[index] += new
            for span, (row,) in zip(spans, context.decode(spans), strict=True):
                alone.truncate(0, 0)
                ((expected,),) = alone.decode([Span(0, tuple(texts[span.sequence_id]), 0, 1)])
                worst = max(worst, float(np.abs(row - expected).max()))
        for index, text in enumerate(texts):  # what is saved of one finds its place too
            if text:
                saved = context.save_state(index)
                assert context.load_state(saved, index) == len(text)
    assert worst < 0.2, "a token left out moves a logit by several"


def test_a_sequence_is_whole_after_hundreds_of_holes_among_its_cells(library, tmp_path):
    """More than ik_llama.cpp closes by one call: the deeper a model, the fewer."""
    length, rng = 900, np.random.default_rng(2)
    texts = rng.integers(40, 200, (4, length + 1)).tolist()
    deep = library.open_weights(read_metadata(write_llama(tmp_path / "deep.gguf", seed=1, n_layer=40)))
    with (
        opened(deep, n_ctx=4 * length + 256, n_sequences=4, n_batch=400) as context,
        opened(deep, n_ctx=length + 8, n_sequences=2, n_batch=400) as alone,
    ):
        for start in range(0, length, 100):
            places = range(start, start + 100)
            context.decode([Span(one, (texts[one][at],), at, 0) for at in places for one in range(4)])
        for gone in (0, 3):
            context.truncate(gone, 0)
        for kept in (1, 2):
            (row,) = context.decode([Span(kept, (texts[kept][length],), length, 1)])[0]
            session = Session(alone)
            alone.truncate(0, 0)
            (expected,) = session.forward(texts[kept])
            assert np.abs(row - expected).max() < 0.2
    deep.close()


def test_a_pass_that_is_stopped_leaves_the_cells_of_other_sequences(weights):
    """Also one before which ik_llama.cpp moves cells to close holes: that computes, and must come to its end."""
    length, rng = 100, np.random.default_rng(3)
    texts = rng.integers(40, 200, (2, length + 1)).tolist()
    with opened(weights, n_ctx=400, n_batch=200) as context:
        context.decode([Span(one, (texts[one][at],), at, 0) for at in range(length) for one in range(2)])
        last = [Span(1, (texts[1][length],), length, 1)]
        ((expected,),) = context.decode(last)
        assert context.truncate(1, length) == length
        context.truncate(0, 0)
        context.cancel.set()
        with pytest.raises(DecodeCancelled):
            context.decode([Span(0, (5, 9, 14), 0, 1)])
        context.cancel.clear()
        context.truncate(0, 0)
        assert np.abs(context.decode(last)[0][0] - expected).max() < 0.2
        # And the flag is looked at again.
        context.cancel.set()
        with pytest.raises(DecodeCancelled):
            context.decode([Span(0, (5, 9, 14), 0, 1)])


def test_what_cannot_be_copied_is_not(weights):
    with opened(weights, n_ctx=64, n_sequences=2) as context:
        context.decode([Span(0, TEXTS[0], 0, 0)])
        assert context.copy_cells(0, 1, len(TEXTS[0]) + 1) == 0 and context.copy_cells(0, 1, 0) == 0
        with pytest.raises(InvalidRequest):
            context.copy_cells(0, 2, 1)


def test_a_sequence_behind_many_cells_of_another_one(weights):
    """Fused attention looks at cells in blocks, and here whole blocks are another sequence's."""
    with (
        opened(weights, n_ctx=1200, n_outputs=8, n_batch=600) as context,
        opened(weights, n_ctx=64) as alone,
    ):
        context.decode([Span(0, TEXTS[0] * 90, 0, 0)])
        for count in (1, 4):
            context.truncate(1, 0)
            alone.truncate(0, 0)
            (row,) = context.decode([Span(1, TEXTS[1][:count], 0, 1)])[0]
            (expected,) = alone.decode([Span(0, TEXTS[1][:count], 0, 1)])[0]
            assert float(np.abs(row - expected).max()) < 0.2
