"""Saved cells: what comes back is what was there, and wrong bytes never reach a library."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from localspec.compute.context_options import ContextOptions
from localspec.compute.state import MAGIC, check_owner, pack, unpack, weights_digest
from localspec.decoding.session import Session
from localspec.errors import DecodeError, InvalidRequest, LocalspecError, StateError
from localspec.ggml.cells import put_cells
from localspec.gguf.metadata import read_metadata
from localspec.ik.library import IkLlama
from localspec.llama.library import LlamaCpp

from .tinygguf import write_gemma, write_llama, write_mamba

WIDE = {"llama.attention.head_count": 2, "llama.attention.head_count_kv": 1}
"""Heads of 32 numbers, a block of an 8-bit cache."""
PROMPT = [5, 9, 14, 200, 31, 77, 8, 120]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    return {
        "llama": write_llama(folder / "llama.gguf", seed=1),
        "tuned": write_llama(folder / "tuned.gguf", seed=1, noise=0.05),
        "wide": write_llama(folder / "wide.gguf", extra=WIDE),
        "gemma": write_gemma(folder / "gemma.gguf", seed=1),
        "mamba": write_mamba(folder / "mamba.gguf", seed=1),
    }


@contextmanager
def opened(library, path, **options):
    model = library.open_weights(read_metadata(path))
    context = model.open_context(ContextOptions(**{"n_ctx": 128, "n_sequences": 2, **options}))
    try:
        yield context
    finally:
        context.close()
        model.close()


def saved(context, tokens=PROMPT, sequence_id=0):
    session = Session(context, sequence_id)
    session.forward(tokens)
    return session.save()


@pytest.mark.parametrize(
    ("library", "name"),
    [(LlamaCpp(), "llama"), (LlamaCpp(), "gemma"), (LlamaCpp(), "mamba"), (IkLlama(), "llama")],
)
def test_the_next_row_is_the_one_without_the_detour(files, library, name):
    with opened(library, files[name]) as context:
        tokens, data = saved(context)
        session = Session(context)
        session.tokens = list(tokens)
        (expected,) = session.forward([42])
        session.rollback(0)
        session.forward([1, 2, 3])
        session.restore(tokens, data)
        assert session.tokens == PROMPT and context.length(0) == len(PROMPT)
        (again,) = session.forward([42])
        assert np.array_equal(again, expected)


@pytest.mark.parametrize(
    ("saved_tokens", "length", "kept"),
    [
        (60, 60, 60),
        (60, 59, 59),  # the next token, the 60th, looks back on 15 others: cells 44 to 58
        (60, 58, 0),
        (60, 57, 0),
        (60, 50, 0),
        (60, 40, 0),
        (60, 0, 0),
        (17, 16, 16),
        (17, 15, 0),
        (16, 15, 15),  # nothing was left out
        (16, 3, 3),
    ],
)
def test_a_window_that_was_saved_is_not_cut_to_cells_that_it_lacks(files, saved_tokens, length, kept):
    """A saved sliding window holds its last 16 cells only: cut to 40, nothing is there, and nobody says so."""
    tokens = [7 * index % 250 for index in range(saved_tokens)]
    with opened(LlamaCpp(), files["gemma"]) as context:
        _, data = saved(context, tokens)
        session = Session(context)
        session.restore(tokens, data)
        assert session.align([*tokens[:length], 3]) == kept == context.length(0)
        (row,) = session.forward([*tokens[kept:length], 3])
        session.rollback(0)
        (expected,) = session.forward([*tokens[:length], 3])
        assert np.argmax(row) == np.argmax(expected) and np.allclose(row, expected, atol=0.1)


def test_a_restored_window_lets_drafts_be_rolled_back(files):
    tokens = [7 * index % 250 for index in range(60)]
    with opened(LlamaCpp(), files["gemma"]) as context:
        _, data = saved(context, tokens)
        session = Session(context)
        session.restore(tokens, data)
        session.forward([3, 4, 5, 6])
        session.rollback(61)
        assert context.length(0) == 61


def test_another_context_and_another_sequence_take_it(library, files):
    with opened(library, files["llama"]) as context:
        tokens, data = saved(context)
        (expected,) = Session(context, 1).forward([*PROMPT, 42])
    with opened(library, files["llama"], n_ctx=64) as context:
        session = Session(context, 1)
        session.restore(tokens, data)
        (row,) = session.forward([42])
        assert np.argmax(row) == np.argmax(expected) and np.allclose(row, expected, atol=0.1)


def test_an_empty_sequence_is_a_state_too(library, files):
    with opened(library, files["llama"]) as context:
        data = context.save_state(0)
        session = Session(context)
        session.forward(PROMPT)
        session.restore([], data)
        assert session.tokens == [] and context.length(0) == 0


@pytest.mark.parametrize("cut", [0, 1, len(MAGIC), 40, 60, 500, -1])
def test_a_shortened_state_is_refused_and_the_cells_stay(library, files, cut):
    with opened(library, files["llama"]) as context:
        tokens, data = saved(context)
        session = Session(context)
        session.tokens = list(tokens)
        with pytest.raises(StateError):
            session.restore(tokens, data[:cut])
        assert session.tokens == PROMPT and context.length(0) == len(PROMPT)


def test_one_changed_bit_anywhere_is_refused(library, files):
    with opened(library, files["llama"]) as context:
        _, data = saved(context)
        for position in [*range(60), *range(60, len(data), len(data) // 40), len(data) - 1]:
            wrong = bytearray(data)
            wrong[position] ^= 1
            with pytest.raises(StateError):
                context.load_state(bytes(wrong))


@pytest.mark.parametrize("value", [None, "text", 7, [1, 2]])
def test_what_is_no_bytes_is_refused(library, files, value):
    with opened(library, files["llama"]) as context, pytest.raises(InvalidRequest, match="saved state"):
        context.load_state(value)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("tuned", {}, "another model"),
        ("wide", {"cache_type_v": "q8_0"}, "another V cache"),
        ("llama", {"n_ctx": 4}, "8 tokens and the context 4"),
    ],
)
def test_a_state_of_something_else_is_refused_by_name(library, files, name, options, said):
    with opened(library, files["wide" if name == "wide" else "llama"]) as context:
        tokens, data = saved(context)
    with opened(library, files[name], **options) as context:
        session = Session(context)
        session.forward([1, 2])
        with pytest.raises(StateError, match=said):
            session.restore(tokens, data)
        assert session.tokens == [1, 2] and context.length(0) == 2, "it is as it was"


@pytest.mark.parametrize("name", ["model", "build", "cache_type_k", "cache_type_v", "repack"])
def test_every_fact_of_the_owner_counts(library, files, name):
    with opened(library, files["llama"]) as context:
        _, data = saved(context)
        facts, cells = unpack(data)
        for wrong in ({**facts, name: "other"}, {key: value for key, value in facts.items() if key != name}):
            with pytest.raises(StateError, match=f"{name} is"):
                context.load_state(pack(wrong, cells))
        assert context.length(0) == len(PROMPT)


@pytest.mark.parametrize("length", [128, 129, -1, 8.0, "8", None])
def test_a_state_as_long_as_the_context_and_no_longer(length):
    ours = dict.fromkeys(("model", "build", "cache_type_k", "cache_type_v", "repack"))
    if length == 128:
        assert check_owner({**ours, "length": length}, ours, 128) == 128
    else:
        with pytest.raises(StateError, match="tokens and the context 128"):
            check_owner({**ours, "length": length}, ours, 128)


def test_models_that_differ_in_their_first_or_last_bytes_alone_are_told_apart(tmp_path):
    path, whole = tmp_path / "m", bytes(1_000_000)
    path.write_bytes(whole)
    first = weights_digest(path, len(whole))
    assert weights_digest(path, len(whole)) == first != weights_digest(path, len(whole) + 1)
    for at in (0, 4095, len(whole) - 4096, len(whole) - 1):
        path.write_bytes(whole[:at] + b"x" + whole[at + 1 :])
        assert weights_digest(path, len(whole)) != first


def test_cells_that_a_library_refuses_leave_an_empty_sequence(library, files):
    """Whole by its checksum, and yet not what it says: the process lives, and so does the context."""
    with opened(library, files["llama"]) as context:
        _, data = saved(context)
        facts, cells = unpack(data)
        session = Session(context)
        session.tokens = list(PROMPT)
        with pytest.raises(StateError, match="refused"):
            session.restore(PROMPT, pack(facts, cells[: len(cells) // 2]))
        assert session.tokens == [] and context.length(0) == 0
        assert len(session.forward(PROMPT)) == 1


@pytest.mark.parametrize("error", [StateError("Half of it is there."), None])
def test_half_a_state_does_not_stay(library, files, monkeypatch, error):
    """Cells that were put in before the fault, or of which the library says nothing."""
    with opened(library, files["llama"]) as context:
        tokens, data = saved(context)
        fewer = saved(context, PROMPT[:3], sequence_id=1)[1]
        session = Session(context)
        session.tokens = list(tokens)

        def put_half(put, cells):
            done = put_cells(put, unpack(fewer)[1])
            if error is not None:
                raise error
            return done

        monkeypatch.setattr("localspec.ggml.context.put_cells", put_half)
        with pytest.raises(StateError):
            session.restore(tokens, data)
        assert session.tokens == [] and context.length(0) == 0


def test_a_state_of_one_library_is_refused_by_the_other(files):
    for ours, other in ((LlamaCpp(), IkLlama()), (IkLlama(), LlamaCpp())):
        with opened(ours, files["llama"]) as context:
            tokens, data = saved(context)
        with opened(other, files["llama"]) as context, pytest.raises(StateError, match="another build"):
            Session(context).restore(tokens, data)


def test_tokens_that_are_not_those_of_the_state_are_refused(library, files):
    with opened(library, files["llama"]) as context:
        tokens, data = saved(context)
        session = Session(context)
        with pytest.raises(StateError, match="8 tokens, and 3"):
            session.restore(tokens[:3], data)
        assert session.tokens == [] and context.length(0) == 0


def test_a_full_context_is_refused_by_the_library_and_not_by_an_abort(library, files):
    with opened(library, files["llama"], n_ctx=256) as context:
        tokens, data = saved(context, PROMPT * 20)
    with opened(library, files["llama"], n_ctx=256) as context:
        Session(context, 1).forward(PROMPT * 20)
        with pytest.raises(StateError, match="refused"):
            Session(context).restore(tokens, data)
        assert context.length(1) == 160


def test_faults_of_the_caller(library, files):
    with opened(library, files["llama"]) as context:
        for sequence_id in (-1, 2):
            with pytest.raises(InvalidRequest, match="sequence_id"):
                context.save_state(sequence_id)
            with pytest.raises(InvalidRequest, match="sequence_id"):
                context.load_state(b"", sequence_id)
        data = context.save_state()
    for call in (context.save_state, lambda: context.load_state(data)):
        with pytest.raises(DecodeError, match="closed"):
            call()
    with pytest.raises(LocalspecError, match="cannot be saved"):
        Session(object()).save()  # type: ignore[arg-type]
