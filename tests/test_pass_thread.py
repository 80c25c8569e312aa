"""The one thread that makes all passes: who waits for it, and what interrupts that."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from localspec.compute.context_options import ContextOptions
from localspec.decoding.session import Span
from localspec.ggml.pass_thread import made_there
from localspec.gguf.metadata import read_metadata

from .tinygguf import write_llama


def test_all_threads_are_served_by_one():
    with ThreadPoolExecutor(8) as pool:
        made_in = set(pool.map(lambda _: made_there(threading.get_ident), range(50)))
    assert len(made_in) == 1 and threading.get_ident() not in made_in


def test_what_it_makes_may_need_it_again():
    assert made_there(lambda: made_there(lambda: 7)) == 7


def test_an_error_comes_to_whoever_asked():
    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        made_there(fail)
    assert made_there(lambda: 1) == 1


def test_an_interrupt_is_raised_when_the_pass_is_over():
    """Its cells are written to until then."""
    over = []

    def make() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        over.append(True)
        return 0

    with pytest.raises(KeyboardInterrupt):
        made_there(make)
    assert over == [True]


def test_an_interrupt_that_is_noticed_with_the_reply_loses_no_reply():
    """The system may give the signal to the thread that computes: who waits then hears of it when it wakes up."""
    for _ in range(50):
        with pytest.raises(KeyboardInterrupt):
            made_there(lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT) or 0)
    assert made_there(lambda: 1) == 1


def test_a_forked_process_has_one_of_its_own():
    made_there(lambda: 0)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of a fork beside threads
        child = os.fork()
    if not child:
        os.write(writing, str(made_there(lambda: 5)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 9) == b"5"


def test_the_passes_of_both_libraries_are_made_there(library, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "localspec.ggml.context.made_there",
        lambda make: made_there(lambda: seen.append(threading.current_thread().name) or make()),
    )
    weights = library.open_weights(read_metadata(write_llama(tmp_path / "tiny.gguf", seed=1)))
    context = weights.open_context(ContextOptions(n_ctx=64, threads=1))
    context.decode([Span(0, (1, 2, 3), 0, 1)])
    context.close()
    weights.close()
    assert seen == ["localspec passes"]
