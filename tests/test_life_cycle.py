"""Inside an application: threads, cancel, close and exit at every moment; C's crashes kept away."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from localspec import LLM
from localspec.errors import (
    ContextFull,
    DecodeError,
    EngineBusy,
    EngineClosed,
    InvalidRequest,
    LocalspecError,
    ModelLoadError,
    PairingError,
)
from localspec.llama import backend
from localspec.llama.vocabulary import LONGEST_TEXT
from localspec.llama.weights import Weights

from .tinygguf import write_llama, write_trio

GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_trio(tmp_path_factory.mktemp("life"))


@pytest.fixture
def llm(files, computed_by):
    with LLM.from_files(files["target"], files["draft"], n_ctx=512, draft_tokens=3, **computed_by) as llm:
        yield llm


@pytest.fixture(scope="module")
def plain(files, computed_by):
    with LLM.from_files(files["target"], no_draft=True, n_ctx=512, **computed_by) as llm:
        return llm.generate("abc", max_tokens=50, **GREEDY).ids


def deep(files, library, **options):
    """Slow enough (40 layers) that something is always under way."""
    return LLM.from_files(files["deep"], n_ctx=512, draft_tokens=3, library=library.key, **options)


def test_cancel_before_the_first_chunk_is_not_lost(llm, plain):
    stream = llm.stream("abc", **GREEDY)
    llm.cancel()
    (chunk,) = list(stream)
    assert chunk.completion.finish_reason == "cancelled" and chunk.completion.ids == ()
    assert llm.generate("abc", max_tokens=50, **GREEDY).ids == plain


def test_one_stream_can_be_cancelled_and_not_the_next(llm, plain):
    first, second = llm.stream("abc", **GREEDY), llm.stream("abc", max_tokens=50, **GREEDY)
    first.cancel()
    assert list(first)[-1].completion.finish_reason == "cancelled"
    assert list(second)[-1].completion.ids == plain


@pytest.mark.parametrize("victim", ["target", "draft"])
@pytest.mark.parametrize("when", [1, 3])
@pytest.mark.parametrize(
    ("code", "cancelled", "ends"),
    [
        (2, False, "cancelled"),
        (2, True, "cancelled"),
        (1, False, ContextFull),
        (1, True, "cancelled"),
        (-3, False, DecodeError),
        (-3, True, "cancelled"),
        (-1, False, DecodeError),
        (-1, True, "cancelled"),
        (3, False, DecodeError),
        (0, True, "cancelled"),
    ],
)
def test_what_a_pass_returns_is_told_by_whether_it_was_cancelled(
    llm, plain, monkeypatch, victim, when, code, cancelled, ends
):
    """A pass that was told to end may end with any code, and one that failed by itself says so."""
    context, passes = getattr(llm.engine, victim), []
    real = context._timed_pass

    def some_pass(wait):
        passes.append(wait)
        if len(passes) < when:
            return real(wait)
        if cancelled:
            llm.cancel()
        return code or real(wait)

    monkeypatch.setattr(context, "_timed_pass", some_pass)
    if isinstance(ends, str):
        assert llm.generate("abc", max_tokens=50, **GREEDY).finish_reason == ends
    else:
        with pytest.raises(DecodeError) as caught:
            llm.generate("abc", max_tokens=50, **GREEDY)
        assert type(caught.value) is ends and caught.value.code == code
    monkeypatch.undo()
    assert llm.generate("abc", max_tokens=50, **GREEDY).ids == plain


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1, 0.3])
def test_cancel_at_any_moment_leaves_a_right_engine(files, library, delay):
    with deep(files, library) as llm:
        expected = llm.generate("abc", max_tokens=12, **GREEDY).ids
        timer = threading.Timer(delay, llm.cancel)
        timer.start()
        llm.generate("xyz" * 100, max_tokens=400, **GREEDY)
        timer.join()
        assert llm.generate("abc", max_tokens=12, **GREEDY).ids == expected


def test_close_while_other_threads_tokenize(files):
    """The vocabulary must not be freed under them."""
    for _ in range(3):
        llm = LLM.from_files(files["target"], n_ctx=512, draft_tokens=3)
        errors = []

        def ask(llm=llm, errors=errors):
            try:
                while True:
                    llm.stream("hello world, some text. " * 5000)
            except EngineClosed:
                return
            except LocalspecError as error:
                errors.append(error)
                if "too" not in str(error) and "holds" not in str(error):
                    raise
                ask(llm, [])

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        llm.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def test_close_ends_the_running_answer_and_those_that_wait(files, library):
    llm = deep(files, library)
    outcomes = []

    def ask():
        answer = llm.generate("abc", **GREEDY)
        outcomes.append((answer.finish_reason, bool(answer.ids)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    llm.close()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == [*[("cancelled", False)] * 3, ("cancelled", True)]


def test_close_ends_an_answer_that_nobody_reads_on(files, library):
    llm = LLM.from_files(files["target"], n_ctx=512, draft_tokens=3, library=library.key)
    stream = llm.stream("abc", **GREEDY)
    reader = threading.Thread(target=lambda: next(stream))
    reader.start()
    reader.join()
    llm.close()
    (last,) = stream
    assert last.completion.finish_reason == "cancelled" and last.completion.ids


def test_close_inside_the_loop_that_reads(files, library):
    llm = LLM.from_files(files["target"], n_ctx=512, draft_tokens=3, library=library.key)
    chunks = []
    for chunk in llm.stream("abc", **GREEDY):
        chunks.append(chunk)
        llm.close()
    assert len(chunks) == 2 and chunks[-1].completion.finish_reason == "cancelled"
    llm.close()


def test_a_stream_read_after_close_says_so_and_close_stays_idempotent(files, library):
    llm = LLM.from_files(files["target"], n_ctx=512, draft_tokens=3, library=library.key)
    stream = llm.stream("abc")
    llm.close()
    assert [chunk.completion.finish_reason for chunk in stream] == ["cancelled"]
    with pytest.raises(EngineClosed):
        llm.stream("abc")
    llm.close()


def test_threads_of_a_pool_may_take_turns_reading(llm, plain):
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        stream = llm.stream("abc", max_tokens=50, **GREEDY)
        first.submit(next, stream).result()
        second.submit(next, stream).result()
        waiting = first.submit(lambda: llm.generate("abc", max_tokens=50, **GREEDY).ids)
        time.sleep(0.1)
        assert not waiting.done()
        second.submit(lambda: list(stream)).result()
        assert waiting.result(30) == plain


def test_the_thread_that_reads_one_answer_cannot_wait_for_another(llm):
    stream = llm.stream("abc", **GREEDY)
    next(stream)
    with pytest.raises(EngineBusy, match="still being read") as refused:
        llm.generate("x")
    assert "parallel=2" in refused.value.remedy
    stream.close()
    assert llm.generate("x", max_tokens=2, **GREEDY).ids


def test_a_dropped_engine_frees_its_memory(files, library):
    live = []

    def load():
        llm = LLM.from_files(files["target"], files["draft"], n_ctx=128, draft_tokens=3, library=library.key)
        llm.generate("abc", max_tokens=3)
        live.append(llm.engine.target)

    load()
    gc.collect()
    assert live[0]._handle is None and live[0].weights._handle is None


def test_a_draft_that_fails_to_load_frees_the_target(files, tmp_path, monkeypatch):
    opened = []
    original = Weights.__init__

    def watched(self, *args, **kwargs):
        opened.append(self)
        if len(opened) == 2:
            raise ModelLoadError("The second model does not load.")
        original(self, *args, **kwargs)

    monkeypatch.setattr(Weights, "__init__", watched)
    with pytest.raises(ModelLoadError, match="second"):
        LLM.from_files(files["target"], files["draft"], draft_tokens=3)
    assert opened[0]._handle is None


def test_nothing_is_loaded_for_a_pair_that_is_refused(files, tmp_path, monkeypatch):
    other = write_llama(tmp_path / "o.gguf", changed_tokens={t: f"other{t}" for t in range(40, 200)})
    monkeypatch.setattr(
        "localspec.llama.weights.Weights", lambda *_args, **_kwargs: pytest.fail("loaded weights")
    )
    with pytest.raises(PairingError, match="vocabular"):
        LLM.from_files(files["target"], other, no_cross_vocabulary=True)


@pytest.mark.parametrize("pre", ["tekken", "gpt-4o", "default", "qwen2"])
def test_a_long_run_of_one_character_does_not_end_the_process(tmp_path, pre):
    """Some pre-tokenizers recurse once per character: from 27,000 on they overflowed an ordinary stack."""
    model = Weights(write_llama(tmp_path / "model.gguf", pre=pre))
    try:
        for run in (" ", "a", "="):
            assert len(model.vocabulary.tokenize(run * 200_000, parse_special=True)) > 1000
    finally:
        model.close()


def test_a_text_beyond_all_reason_is_refused(llm):
    with pytest.raises(InvalidRequest, match="bytes"):
        llm.stream("x" * (LONGEST_TEXT + 1))


@pytest.mark.parametrize("vocab_only", [False, True])
def test_a_vocabulary_of_closed_weights_says_so(files, vocab_only):
    """Its memory is gone: whoever still holds it must not ask."""
    weights = Weights(files["target"], vocab_only=vocab_only)
    vocabulary = weights.vocabulary
    assert vocabulary.tokenize("abc", parse_special=False)
    weights.close()
    for ask in (
        lambda: vocabulary.tokenize("abc", parse_special=False),
        lambda: vocabulary.piece(65),
        lambda: vocabulary.eog_tokens,
        lambda: vocabulary.add_bos,
    ):
        with pytest.raises(ModelLoadError, match="was closed"):
            ask()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([(4, "the cause"), (5, "of it"), (3, "a warning"), (4, "what follows from it")], "the cause of it"),
        ([(3, "first"), (3, "latest"), (2, "chatter"), (1, "more")], "latest"),
        ([(5, "a continuation of nothing"), (2, "chatter"), (4, "")], ""),
    ],
)
def test_of_what_llama_cpp_logged_the_first_error_is_the_reason(lines, told):
    backend.lines.forget()
    for level, line in lines:
        backend.lines.take_in(level, line)
    assert backend.lines.last_line() == told
    backend.lines.forget()
    assert backend.lines.last_line() == ""


def test_a_failed_load_names_the_true_reason(files, library):
    with pytest.raises(LocalspecError, match="block size"):
        LLM.from_files(files["target"], cache_type_k="q8_0", draft_tokens=3, library=library.key)


def test_ctrl_c_during_a_load_is_not_lost(files, library, native, monkeypatch):
    """It arrives inside the library's log callback, where an exception would be swallowed."""
    calls = []

    def interrupt(*_args):
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    monkeypatch.setattr(native.lines.logger, "debug", interrupt)
    with pytest.raises(KeyboardInterrupt):
        LLM.from_files(files["target"], draft_tokens=3, library=library.key)
    monkeypatch.undo()
    with LLM.from_files(files["target"], draft_tokens=3, library=library.key) as llm:
        assert llm.generate("abc", max_tokens=2).ids


def test_a_daemon_thread_still_generating_at_exit(files, library):
    code = (
        "import sys, threading, time; from localspec import LLM\n"
        "llm = LLM.from_files(sys.argv[1], n_ctx=512, draft_tokens=3, library=sys.argv[2])\n"
        "def work():\n"
        "    while True: llm.generate('abc', temperature=0)\n"
        "threading.Thread(target=work, daemon=True).start(); time.sleep(0.5)\n"
    )
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, "-c", code, str(files["deep"]), library.key], capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        assert "Fatal" not in result.stderr and "Segmentation" not in result.stderr


def test_a_daemon_thread_that_asks_on_and_on_lets_the_interpreter_end_in_silence(files, library):
    code = (
        "import sys, threading\n"
        "from localspec import LLM\n"
        "llm = LLM.from_files(*sys.argv[2:], n_ctx=512, draft_tokens=3, library=sys.argv[1])\n"
        "begun = threading.Event()\n"
        "def ask():\n"
        "    while True:\n"
        "        for chunk in llm.stream('abc', max_tokens=50):\n"
        "            begun.set()\n"
        "threading.Thread(target=ask, daemon=True).start()\n"
        "begun.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, library.key, files["target"], files["draft"]],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
