"""What is done inside an answer of a seat, or drops one anywhere, waits for nothing that waits for it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from itertools import count

import pytest

from localspec import LLM
from localspec.errors import EngineBusy

from .tinygguf import write_pair

SECONDS = 60
LONG = {"max_tokens": 400, "ignore_eos": True, "temperature": 0}
OPTIONS = {"n_ctx": 512, "draft_tokens": 3, "threads": 1, "parallel": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("seats"))


@pytest.fixture
def llm(files, computed_by):
    with LLM.from_files(*files, **OPTIONS, **computed_by) as llm:
        yield llm


def reason(llm, action, **options):
    """How an answer ends within which `action` is done once."""
    calls = count()

    def processor(ids, logits):
        if next(calls) == 5:
            action()
        return logits

    options = {"max_tokens": 30, "ignore_eos": True, "logits_processors": [processor]} | options
    return in_time(lambda: llm.generate("abc", **options).finish_reason)


def in_time(work):
    """What `work` returns, in a thread that a deadlock would not let the tests wait for."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "it does not come to its end"
    return found[0]


def test_an_answer_within_an_answer_is_refused(llm):
    refused = []

    def ask():
        try:
            llm.generate("a", max_tokens=1)
        except EngineBusy as error:
            refused.append(error)

    assert reason(llm, ask) == "length"
    assert refused and "logits processor" in refused[0].message


def test_an_answer_within_a_block_that_has_the_engine_is_refused(llm):
    def ask():
        with llm.exclusive(), pytest.raises(EngineBusy):
            llm.generate("a", max_tokens=1)
        return llm.generate("a", max_tokens=1).finish_reason

    assert in_time(ask) == "length"


@pytest.mark.parametrize("seats", [1, 2])
@pytest.mark.parametrize("begun", [False, True])
def test_an_answer_that_waits_for_a_block_is_not_read_in_it_and_stays_whole(files, seats, begun):
    """Whoever else reads it waits for the block to end: who is in the block would wait for that reader."""
    with LLM.from_files(*files, **{**OPTIONS, "parallel": seats}) as llm:
        stream, chunks = llm.stream("abc", max_tokens=20, ignore_eos=True), []
        reader = threading.Thread(target=lambda: chunks.extend(stream), daemon=True)

        def read_within():
            with llm.exclusive():
                if begun:
                    reader.start()
                    while not llm._queue._waiting:
                        time.sleep(0.001)
                for _ in range(2):
                    with pytest.raises(EngineBusy, match="This thread has the engine"):
                        next(stream)
            return True

        assert in_time(read_within)
        if not begun:
            reader.start()
        reader.join(SECONDS)
        completion = chunks[-1].completion
        assert completion.finish_reason == "length" and len(completion.ids) == 20


@pytest.mark.parametrize("own", [False, True], ids=["another", "itself"])
def test_an_answer_that_has_begun_is_not_read_on_within_an_answer(llm, own):
    """It would wait for a pass that waits for this thread."""
    refused, streams = [], [llm.stream("xyz", **LONG)]
    next(streams[0])

    def read_on():
        try:
            next(streams[-1])
        except EngineBusy as error:
            refused.append(error)

    calls = count()

    def processor(ids, logits):
        if next(calls) == 5:
            read_on()
        return logits

    asked = llm.stream("abc", max_tokens=30, ignore_eos=True, logits_processors=[processor])
    if own:
        streams.append(asked)
    assert in_time(lambda: [chunk.completion for chunk in asked][-1].finish_reason) == "length"
    assert refused
    other = in_time(lambda: [chunk.completion for chunk in streams[0]][-1])
    assert other.finish_reason == "length" and not streams[0].cancelled


def test_an_answer_may_be_closed_within_itself_and_within_another(llm):
    own = []

    def close():
        own[0].close()

    def processor(ids, logits):
        close()
        return logits

    own.append(llm.stream("abc", logits_processors=[processor], **LONG))
    assert in_time(lambda: [chunk.completion for chunk in own[0]][-1].finish_reason) == "cancelled"
    other = llm.stream("xyz", **LONG)
    next(other)
    assert reason(llm, other.close) == "length"
    assert [chunk.completion for chunk in other][-1].finish_reason == "cancelled"


def test_the_engine_may_be_closed_within_an_answer(llm):
    other = llm.stream("xyz", **LONG)
    next(other)
    assert reason(llm, llm.close) == "cancelled"
    assert [chunk.completion for chunk in other][-1].finish_reason == "cancelled"


@pytest.mark.parametrize("own", [False, True], ids=["another", "itself"])
def test_the_garbage_collector_may_drop_an_answer_in_the_thread_of_any(llm, own):
    """Of answers that are part of a ring of objects, which only the collector finds."""
    collected = threading.Event()
    calls = count()

    def collect(ids, logits):
        if next(calls) == 40:
            gc.collect()
            collected.set()
        return logits

    ring = [llm.stream("xyz", **LONG, logits_processors=[collect] if own else [])]
    ring.append(ring)
    next(ring[0])
    gc.disable()
    try:
        del ring
        if own:
            assert collected.wait(SECONDS)
        else:
            assert reason(llm, gc.collect) == "length"
    finally:
        gc.enable()
    in_time(lambda: llm.forget() or True)  # waits for both seats


def test_a_closed_answer_hands_out_all_that_its_completion_says(llm):
    stream = llm.stream("xyz", logprobs=1, **LONG)
    chunks = [next(stream)]
    for _ in range(3):  # it is computed on meanwhile
        llm.generate("abc", max_tokens=10)
    stream.close()
    chunks += stream
    completion = chunks[-1].completion
    assert "".join(chunk.text for chunk in chunks) == completion.text
    assert sum((chunk.tokens for chunk in chunks), ()) == completion.ids
    assert sum((chunk.logprobs for chunk in chunks), ()) == completion.logprobs


def test_an_answer_that_was_read_to_its_end_was_not_told_to_end(llm):
    for _ in range(30):
        stream = llm.stream("xyz", max_tokens=2)
        assert list(stream)
        assert not stream.cancelled


def test_a_program_ends_while_readers_in_daemon_threads_wait_for_seats(files, library):
    code = (
        "import sys, threading, time\nfrom localspec import LLM\n"
        f"llm = LLM.from_files(*sys.argv[2:], library=sys.argv[1], **{OPTIONS})\n"
        f"ask = lambda: (llm.generate('abc', **{LONG}), print('read'))\n"
        "for _ in range(5):\n    threading.Thread(target=ask, daemon=True).start()\n"
        "time.sleep(0.05)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, library.key, *map(str, files)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
