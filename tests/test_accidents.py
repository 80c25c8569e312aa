"""Accidents inside an application: close and cancel from within, the wrong thread, the wrong moment.

After each of them the engine answers as one that had none.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from localspec import LLM, SamplingParams
from localspec.aio import AsyncLLM
from localspec.answers.stream import AnswerStream
from localspec.decoding import calibrate
from localspec.errors import DecodeCancelled, EngineBusy, EngineClosed, InvalidRequest
from localspec.system.load_watch import current_watch

from .tinygguf import write_trio

GREEDY = {"temperature": 0}
SECONDS = 60
SHORT = {"temperature": 0, "max_tokens": 20}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_trio(tmp_path_factory.mktemp("accidents"))


@pytest.fixture
def load(files, tmp_path):
    """Loads an engine with a home of its own."""
    opened = []

    def load(name="target", **options):
        options = {"n_ctx": 512, "draft_tokens": 3, "cache_type_v": "bf16", "home": tmp_path, **options}
        opened.append(LLM.from_files(files[name], files["draft"], **options))
        return opened[-1]

    yield load
    for llm in opened:
        llm.close()


# Cancel while passes are measured


@pytest.mark.parametrize("moment", [1, 2, 4])
def test_cancel_while_what_passes_cost_is_measured(load, monkeypatch, moment):
    """Its tokens stood in the cells, and the next answer took them for its own."""
    llm = load()
    prompt = "a prompt that is in the cells. " * 4
    expected = llm.generate(prompt, **SHORT).ids
    calls = []

    def cancelling(self, width, _time=calibrate.Calibrator.time):
        calls.append(1)
        if len(calls) == moment:
            llm.cancel()
        return _time(self, width)

    monkeypatch.setattr(calibrate.Calibrator, "time", cancelling)
    with pytest.raises(DecodeCancelled):
        llm.calibrate()
    assert len(calls) == moment
    assert llm.generate(prompt, **SHORT).ids == expected


# Close and more within an answer


def within(action):
    """What `action` returns or raises, in a thread: it must not hang."""
    outcome = []

    def run():
        try:
            outcome.append(action())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert outcome, "it hangs"
    return outcome[0]


def eventually(condition):
    ends = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.005)


def test_close_within_an_answer_frees_everything_at_its_end(load):
    """A callback, a signal handler, the end of an object that is collected: waiting for the answer would never end."""
    llm = load()
    context = llm.engine.target

    def closing(ids, logits):
        llm.close()
        assert context._handle is not None

    answer = within(lambda: llm.generate("abc", logits_processors=[closing], **GREEDY))
    assert answer.finish_reason == "cancelled"
    assert context._handle is None and context.weights._handle is None and not llm.loaded
    assert isinstance(within(lambda: llm.generate("abc")), EngineClosed)
    within(llm.close)


@pytest.mark.parametrize("block", ["using", "exclusive"])
def test_close_within_a_block_frees_everything_at_its_end(load, block):
    llm = load()
    context = llm.engine.target

    def use():
        with getattr(llm, block)() as engine:
            llm.close()
            return engine.vocab.tokenize("abc", parse_special=False)

    assert len(within(use)) == 3
    assert context._handle is None and not llm.loaded


def test_close_within_a_load_ends_it(load, monkeypatch):
    """A signal handler may run in the middle of weights that are loaded again."""
    llm = load()
    llm.unload()

    def closing(*_arguments, **_options):
        llm.close()
        current_watch().check()

    monkeypatch.setattr("localspec.engine.keeper.load_engine", closing)
    for use in (lambda: llm.generate("abc"), lambda: llm.engine, lambda: llm.template):
        assert isinstance(within(use), EngineClosed)


def test_a_signal_handler_closes_and_leaves(files):
    code = (
        "import signal, sys; from localspec import LLM\n"
        "llm = LLM.from_files(sys.argv[1], n_ctx=512, draft_tokens=3)\n"
        "def leave(*_):\n"
        "    llm.close()\n"
        "    sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "def later(ids, logits):\n"
        "    if len(ids) > 9: signal.raise_signal(signal.SIGTERM)\n"
        "llm.generate('abc', temperature=0, logits_processors=[later])\n"
    )
    command = [sys.executable, "-c", code, str(files["target"])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (result.returncode, result.stderr) == (3, "")


def test_who_has_the_engine_cannot_wait_for_it(load):
    llm = load()

    def wait():
        with llm.exclusive():
            llm.generate("abc")

    assert isinstance(within(wait), EngineBusy)
    asked = []

    def asking(ids, logits):
        if not asked:
            asked.append(within_same(lambda: llm.generate("abc")))

    def within_same(action):
        with pytest.raises(EngineBusy):
            action()
        return True

    assert within(lambda: llm.generate("abc", logits_processors=[asking], **SHORT)).ids and asked


# Streams and threads


def test_a_stream_is_closed_by_a_thread_that_does_not_read_it(load):
    llm = load("deep")
    expected = llm.generate("abc", **SHORT).ids
    chunks = []
    stream = llm.stream("abc", **GREEDY)
    reader = threading.Thread(target=lambda: chunks.extend(stream))
    reader.start()
    eventually(lambda: chunks)
    assert within(stream.close) is None and stream.ended
    reader.join(SECONDS)
    assert not reader.is_alive() and len(chunks) < 400
    assert llm.generate("abc", **SHORT).ids == expected


def test_a_stream_is_closed_within_its_own_reading(load):
    llm = load()
    streams = []
    streams.append(llm.stream("abc", logits_processors=[lambda ids, logits: streams[0].close()], **GREEDY))
    chunks = within(lambda: list(streams[0]))
    assert chunks[-1].completion.finish_reason == "cancelled" and streams[0].ended
    streams.append(llm.stream("abc", logits_processors=[lambda ids, logits: next(streams[1])], **GREEDY))
    assert isinstance(within(lambda: list(streams[1])), EngineBusy)
    assert llm.generate("abc", **SHORT).ids


def test_threads_that_read_one_stream_share_its_chunks(load):
    llm = load("deep")
    expected = list(llm.stream("abc", **SHORT))
    chunks, stream = [], llm.stream("abc", **SHORT)
    threads = [threading.Thread(target=lambda: chunks.extend(stream)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(chunk.tokens for chunk in chunks) == sorted(chunk.tokens for chunk in expected)
    assert sum(chunk.completion is not None for chunk in chunks) == 1


def test_close_between_two_chunks_of_a_whole_answer(load, monkeypatch):
    """`generate` and its kin return what there was until then."""
    llms = [load(), load()]

    def closing(self, _next=AnswerStream.__next__):
        chunk = _next(self)
        for llm in llms:
            if llm._queue is self._queue:
                llm.close()
        return chunk

    monkeypatch.setattr(AnswerStream, "__next__", closing)
    for answer in (
        llms[0].generate("abc", **GREEDY),
        asyncio.run(AsyncLLM(llms[1]).generate("abc", **GREEDY)),
    ):
        assert answer.finish_reason == "cancelled" and answer.ids


# The one end of an answer, whoever brings it about


ENDS = {
    "llm.close": lambda llm, answer: llm.close(),
    "leaving the block": lambda llm, answer: llm.__exit__(None, None, None),
    "llm.cancel": lambda llm, answer: llm.cancel(),
    "answer.cancel": lambda llm, answer: answer.cancel(),
    "answer.close": lambda llm, answer: answer.close(),
}


def read_and_end(llm, place, end):
    """The chunks of an answer that `end` ends early, once or twice."""
    chunks, answers = [], []

    def ending(*_):
        if answers and not answers[0].cancelled:
            end(llm, answers[0])
            end(llm, answers[0])

    prompt = "abc" * 60
    callback = {"logits_processors": [ending]} if place == "the callback" else {}
    answers.append(llm.stream(prompt, **GREEDY, **callback))
    if place == "before it is read":
        ending()
    for chunk in answers[0]:
        chunks.append(chunk)
        if place == "the loop":
            ending()
        elif place == "another thread, between two chunks":
            within(ending)
        elif place == "another thread" and len(chunks) == 1:
            threading.Thread(target=ending, daemon=True).start()
    assert next(answers[0], None) is None and answers[0].ended
    return chunks


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "place",
    ["the loop", "another thread, between two chunks", "another thread", "the callback", "before it is read"],
)
def test_whoever_ends_an_answer_its_reader_gets_a_last_chunk(load, place, end):
    chunks = within(lambda: read_and_end(load("deep"), place, ENDS[end]))
    *before, last = chunks
    assert last.completion.finish_reason == "cancelled"
    assert not any(chunk.completion for chunk in before)
    assert "".join(chunk.text for chunk in chunks) == last.completion.text
    assert sum((chunk.tokens for chunk in chunks), ()) == last.completion.ids
    assert last.completion.stats.tokens >= len(last.completion.ids) and len(last.completion.ids) < 300
    assert bool(before) == (place != "before it is read")


@pytest.mark.parametrize("end", ["llm.close", "llm.cancel", "answer.cancel", "answer.aclose"])
def test_whoever_ends_an_answer_in_a_loop_of_asyncio_its_reader_gets_a_last_chunk(load, end):
    async def main():
        llm = AsyncLLM(load("deep"))
        answer, chunks = llm.stream("abc", **GREEDY), []
        async for chunk in answer:
            chunks.append(chunk)
            if len(chunks) == 1:
                await {
                    "llm.close": llm.close,
                    "answer.aclose": answer.aclose,
                    "llm.cancel": lambda: asyncio.to_thread(llm.cancel),
                    "answer.cancel": lambda: asyncio.to_thread(answer.cancel),
                }[end]()
        return chunks

    chunks = asyncio.run(asyncio.wait_for(main(), SECONDS))
    assert chunks[-1].completion.finish_reason == "cancelled" and len(chunks) > 1
    assert not any(chunk.completion for chunk in chunks[:-1])


def test_an_answer_that_is_whole_says_so_whoever_ends_it(load):
    """Ended between its last round and its last chunk."""
    for end in ENDS.values():
        llm = load()
        answer = llm.stream("abc", **SHORT)
        chunks = []
        for chunk in answer:
            chunks.append(chunk)
            if sum(len(chunk.tokens) for chunk in chunks) == SHORT["max_tokens"]:
                end(llm, answer)
        assert chunks[-1].completion.finish_reason == "length"


@pytest.mark.parametrize(("end", "kept"), [("llm.close", 1), ("answer.cancel", 1), ("answer.close", 0)])
def test_a_conversation_keeps_what_was_cancelled_and_read_to_its_end(load, end, kept):
    llm = load()
    talk = llm.conversation(**GREEDY)
    answer = talk.ask("x")
    for chunk in answer:
        if chunk.completion is None:
            ENDS[end](llm, answer)
    assert [turn.answer for turn in talk.turns] == [chunk.completion.text] * kept


def test_an_answer_in_the_loop_is_not_unloaded(load):
    llm = load()
    unloaded = []
    reasons = []
    for chunk in llm.stream("abc", **SHORT):
        unloaded.append(llm.unload())
        reasons.append(chunk.completion and chunk.completion.finish_reason)
    assert reasons[-1] == "length" and not any(unloaded)


def test_an_answer_that_waits_for_weights_ends_as_every_other(load, monkeypatch):
    for end in (LLM.cancel, LLM.close):
        llm = load()
        answer = llm.stream("abc", **GREEDY)
        llm.unload()

        def ending(*_arguments, llm=llm, end=end, **_options):
            end(llm)
            current_watch().check()

        with monkeypatch.context() as patch:
            patch.setattr("localspec.engine.keeper.load_engine", ending)
            (chunk,) = within(lambda answer=answer: list(answer))
        assert chunk.completion.finish_reason == "cancelled"


# Conversations


def test_the_next_question_right_after_a_cancel(load):
    """The thread that reads may take a moment to see the end; the conversation was "unfinished" for that long."""
    talk = load("deep").conversation(**GREEDY)
    for count in range(1, 4):
        chunks = []
        stream = talk.ask("x")
        reader = threading.Thread(target=lambda stream=stream, chunks=chunks: chunks.extend(stream))
        reader.start()
        eventually(lambda chunks=chunks: chunks)
        stream.cancel()
        answer = list(talk.ask("y", max_tokens=2))[-1].completion
        reader.join(SECONDS)
        assert [turn.question for turn in talk.turns] == ["x", "y"] * count
        assert talk.turns[-2].answer == chunks[-1].completion.text
        assert talk.turns[-1].answer == answer.text


def test_an_answer_closed_by_another_thread_leaves_no_trace(load):
    talk = load("deep").conversation(**GREEDY)
    chunks = []
    stream = talk.ask("x")
    reader = threading.Thread(target=lambda: chunks.extend(stream))
    reader.start()
    eventually(lambda: chunks)
    stream.close()
    reader.join(SECONDS)
    assert talk.turns == () and list(talk.ask("y", max_tokens=2)) and len(talk.turns) == 1


def test_cancelled_tasks_leave_no_trace_and_may_ask_again_at_once(files):
    async def main():
        async with await AsyncLLM.load(files["deep"], n_ctx=512, draft_tokens=3) as llm:
            talk = llm.llm.conversation(**GREEDY)
            for _ in range(3):
                read = asyncio.Event()

                async def ask(read=read):
                    async for _ in llm.ask(talk.ask, "x"):
                        read.set()

                task = asyncio.create_task(ask())
                await read.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert [chunk async for chunk in llm.ask(talk.ask, "y", max_tokens=2)]
            return [turn.question for turn in talk.turns]

    assert asyncio.run(asyncio.wait_for(main(), SECONDS)) == ["y"] * 3


def test_attempts_with_a_seed_of_numpy_differ_and_a_bad_seed_is_refused(load):
    talk = load().conversation(temperature=1.5, max_tokens=12)

    def attempts(seed):
        list(talk.ask("x", seed=seed))
        list(talk.regenerate(seed=seed))
        list(talk.regenerate(params=SamplingParams(seed=seed, temperature=1.5, max_tokens=12)))
        return talk.undo().answer

    assert attempts(7) == attempts(np.int64(7)) != list(talk.ask("x", seed=7))[-1].completion.text
    for seed in (-1, True, 2**64, "7"):
        with pytest.raises(InvalidRequest, match="seed"):
            talk.regenerate(seed=seed)
    assert [turn.attempt for turn in talk.turns] == [0]
