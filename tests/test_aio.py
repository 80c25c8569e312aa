"""The asyncio adapter, and the end of the interpreter with everything still open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import subprocess
import sys
import threading
import time

import pytest

from localspec import LLM, LoadCancelled
from localspec.aio import AsyncLLM
from localspec.errors import EngineBusy, EngineClosed, InvalidRequest, ModelFileError

from .tinygguf import write_trio

GREEDY = {"temperature": 0, "max_tokens": 20}
ENDLESS = {"temperature": 0, "max_tokens": 400}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_trio(tmp_path_factory.mktemp("aio"))


def load(files, **options):
    return AsyncLLM.load(files["target"], files["draft"], n_ctx=512, draft_tokens=3, **options)


def engine(files):
    return LLM.from_files(files["target"], files["draft"], n_ctx=512, draft_tokens=3)


@pytest.fixture(scope="module")
def expected(files):
    with engine(files) as llm:
        return llm.generate("abc", **GREEDY)


def test_answers_are_the_llms_own(files, expected):
    async def main():
        seen = []
        async with await load(files, on_progress=seen.append) as llm:
            chunks = [chunk async for chunk in llm.stream("abc", **GREEDY)]
            assert "".join(chunk.text for chunk in chunks) == expected.text
            assert chunks[-1].completion.ids == expected.ids
            assert (await llm.generate("abc", **GREEDY)).ids == expected.ids
            answer = llm.chat([{"role": "user", "content": "x"}], **GREEDY)
            assert [chunk async for chunk in answer][-1].completion.ids
            assert [chunk async for chunk in answer] == []
            assert seen[-1].fraction == 1.0
        with pytest.raises(EngineClosed):
            await llm.generate("abc")

    asyncio.run(main())


def test_answers_asked_for_at_once_queue(files, expected):
    async def main():
        async with await load(files) as llm:
            return await asyncio.gather(*(llm.generate("abc", **GREEDY) for _ in range(8)))

    assert [answer.ids for answer in asyncio.run(main())] == [expected.ids] * 8


def test_a_conversation(files):
    async def main():
        async with await load(files) as llm:
            conversation = llm.llm.conversation(**GREEDY)
            first = [chunk async for chunk in llm.ask(conversation.ask, "x")][-1].completion
            again = [chunk async for chunk in llm.ask(conversation.regenerate)][-1].completion
            assert first.ids == again.ids and len(conversation.turns) == 1

    asyncio.run(main())


@pytest.mark.parametrize("what", ["clear", "undo", "ask", "save"])
def test_an_answer_that_is_computed_and_not_read_is_unfinished(files, tmp_path, what):
    """Its turn comes with its last chunk: until then nothing may go past it, or bring back what was forgotten."""

    async def main():
        async with await load(files) as llm:
            talk = llm.llm.conversation(**GREEDY)
            assert [chunk async for chunk in llm.ask(talk.ask, "one")] and len(talk.turns) == 1
            unread = llm.ask(talk.ask, "two")
            await anext(unread)
            await asyncio.to_thread(llm.llm.forget)  # behind it: all of it is computed
            arguments = {"save": [tmp_path / "talk"], "ask": ["three"]}.get(what, [])
            with pytest.raises(EngineBusy):
                getattr(talk, what)(*arguments)
            assert [chunk async for chunk in unread][-1].completion
            assert [turn.question for turn in talk.turns] == ["one", "two"]
            getattr(talk, what)(*arguments)

    asyncio.run(main())


def test_who_reads_on_behind_the_end_finds_it_at_once(files):
    async def main():
        async with await load(files) as llm:
            answer = llm.stream("abc", temperature=0, max_tokens=4)
            assert [chunk async for chunk in answer][-1].completion
            for _ in range(2):
                with pytest.raises(StopAsyncIteration):
                    await asyncio.wait_for(anext(answer), 60)

    asyncio.run(main())


def test_errors_come_with_the_first_chunk(files):
    async def main():
        async with await load(files) as llm:
            answer = llm.stream("abc", top_p=7)
            with pytest.raises(InvalidRequest, match="top_p"):
                await anext(answer)
            assert [chunk async for chunk in answer] == []
        with pytest.raises(ModelFileError):
            await AsyncLLM.load("no/such/file.gguf")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("way", "answered"),
    [*itertools.product(["aclose", "break", "raise"], [False, True]), ("task", False)],
)
def test_a_conversation_goes_on_as_if_what_is_left_had_not_been_asked(files, way, answered):
    options = GREEDY if answered else ENDLESS

    async def leave(llm, conversation):
        answer = llm.ask(conversation.ask, "left", ignore_eos=True, **options)
        with contextlib.suppress(RuntimeError):
            async for _chunk in answer:
                if answered:
                    await asyncio.to_thread(llm.llm.forget)  # behind it: all of it is decoded, and unread
                if way == "break":
                    break
                if way == "raise":
                    raise RuntimeError
                if way == "aclose":
                    await answer.aclose()

    async def main():
        async with await load(files) as llm:
            conversation = llm.llm.conversation()
            task = asyncio.create_task(leave(llm, conversation))
            if way == "task":
                await asyncio.sleep(0.05)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert conversation.turns == ()
            completions = [chunk async for chunk in llm.ask(conversation.ask, "kept", **GREEDY)]
            assert [turn.question for turn in conversation.turns] == ["kept"]
            assert conversation.turns[0].answer == completions[-1].completion.text

    asyncio.run(main())


def test_what_was_cancelled_and_read_is_kept(files):
    async def main():
        async with await load(files) as llm:
            conversation = llm.llm.conversation()
            answer = llm.ask(conversation.ask, "x", ignore_eos=True, **ENDLESS)
            await anext(answer)
            answer.cancel()
            completion = [chunk async for chunk in answer][-1].completion
            assert completion.finish_reason == "cancelled"
            assert [turn.answer for turn in conversation.turns] == [completion.text]

    asyncio.run(main())


def test_an_answer_is_asked_of_a_function(files):
    async def main():
        async with await load(files) as llm:
            with pytest.raises(InvalidRequest, match=r"ask\(conversation.ask"):
                llm.ask("hello")

    asyncio.run(main())


def test_cancelling_the_task_ends_the_answer_and_the_next_is_right(files, expected):
    async def main():
        async with await load(files) as llm:
            task = asyncio.create_task(llm.generate("abc", **ENDLESS))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await llm.generate("abc", **GREEDY)).ids == expected.ids

    asyncio.run(main())


@pytest.mark.parametrize("end", ["cancel", "aclose", "drop", "break", "llm.cancel"])
def test_every_other_end_frees_the_engine(files, expected, end):
    async def main():
        llm = AsyncLLM(LLM.from_files(files["deep"], n_ctx=512, draft_tokens=3))
        async with llm:
            first = (await llm.generate("abc", **GREEDY)).ids
            answer = llm.stream("abc", **ENDLESS)
            chunks = [await anext(answer)]
            if end == "break":
                async for _ in answer:
                    break
            elif end == "aclose":
                await answer.aclose()
                chunks += [chunk async for chunk in answer]
                assert [bool(chunk.completion) for chunk in chunks] == [False, True]
            elif end != "drop":
                (answer if end == "cancel" else llm).cancel()
                chunks += [chunk async for chunk in answer]
                assert chunks[-1].completion.finish_reason == "cancelled"
            del answer
            gc.collect()
            assert (await llm.generate("abc", **GREEDY)).ids == first

    asyncio.run(main())


def test_the_loop_runs_on_while_the_model_works(files):
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticker = asyncio.create_task(tick())
        async with await load(files) as llm:
            loaded = ticks
            await llm.generate("abc", **ENDLESS)
            assert 0 < loaded < ticks
        ticker.cancel()

    asyncio.run(main())


def test_a_model_that_was_loaded_just_as_its_task_was_cancelled_is_closed(files, monkeypatch):
    """The load is done, and the loop has not said so yet: nobody else will ever hold that model."""
    loaded = []

    class Done:
        def when_done(self, tell):
            loading.set()

        def cancel(self):
            return False

        def result(self):
            loaded.append(LLM.from_files(files["target"], n_ctx=512, draft_tokens=3))
            return loaded[-1]

    async def main():
        task = asyncio.create_task(AsyncLLM.load(files["target"]))
        await loading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loading = asyncio.Event()
    monkeypatch.setattr(LLM, "load_in_background", lambda *_arguments, **_options: Done())
    asyncio.run(main())
    (llm,) = loaded
    with pytest.raises(EngineClosed):
        llm.tokenize("abc")


def test_cancelling_the_load_frees_everything(files):
    async def main():
        stopped = asyncio.Event()
        task = asyncio.create_task(load(files, on_progress=lambda _progress: stopped.set()))
        await stopped.wait()
        task.cancel()
        with pytest.raises((asyncio.CancelledError, LoadCancelled)):
            await task

    asyncio.run(main())
    deadline = time.monotonic() + 60
    while any(thread.name == "localspec load" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_while_answers_run_and_wait(files):
    async def main():
        llm = AsyncLLM(LLM.from_files(files["deep"], n_ctx=512, draft_tokens=3))
        tasks = [asyncio.create_task(llm.generate("abc", **ENDLESS)) for _ in range(4)]
        await asyncio.sleep(0.2)
        await llm.close()
        await llm.close()
        ends = await asyncio.gather(*tasks)
        assert {end.finish_reason for end in ends} == {"cancelled"}
        with pytest.raises(EngineClosed):
            await llm.generate("abc")

    asyncio.run(main())


# The end of the interpreter

START = """
import asyncio, gc, sys, threading, time
from localspec import LLM, Conversation
from localspec.aio import AsyncLLM
from localspec.errors import EngineClosed
path, deep = sys.argv[1:3]
def load(**options): return LLM.from_files(path, n_ctx=512, draft_tokens=3, **options)
"""
EXITS = {
    "loading": "loading = LLM.load_in_background(deep, n_ctx=512)",
    "loading in its middle": """
begun = threading.Event()
loading = LLM.load_in_background(deep, on_progress=lambda p: (begun.set(), time.sleep(0.005)), draft_tokens=3)
begun.wait()""",
    "loading done, result not taken": """
loading = LLM.load_in_background(path, draft_tokens=3)
while not loading.done: time.sleep(0.01)""",
    "loading result, llm after": "loading = LLM.load_in_background(path, draft_tokens=3); llm = loading.result()",
    "loading dropped": "LLM.load_in_background(deep, n_ctx=512); gc.collect()",
    "loading cancelled": "loading = LLM.load_in_background(deep, n_ctx=512); loading.cancel()",
    "stream after llm": "llm = load(); stream = llm.stream('abc'); next(stream); del llm",
    "stream before llm": "llm = load(); stream = llm.stream('abc'); next(stream); del stream",
    "conversation": "llm = load(); c = llm.conversation(); s = c.ask('x'); next(s)",
    "conversation without llm": "c = load().conversation(); list(c.ask('x', max_tokens=3))",
    "cycle": "llm = load(); c = llm.conversation(); s = c.ask('x'); next(s); llm.me = (llm, c, s); del llm, c, s",
    "idle timer": "llm = load(unload_after=1000)",
    "idle, unloaded": "llm = load(unload_after=0.001); time.sleep(0.2)",
    "idle, in a thread": """
llm = load(unload_after=0.001)
def work():
    try:
        while True: llm.generate('abc', max_tokens=3)
    except EngineClosed: pass
threading.Thread(target=work, daemon=True).start(); time.sleep(0.3)""",
    "saving": "llm = load(); c = llm.conversation(); list(c.ask('x', max_tokens=3)); c.save(sys.argv[3])",
    "async, open": """
async def main():
    llm = AsyncLLM(load()); global answer; answer = llm.stream('abc', temperature=0); await anext(answer)
asyncio.run(main())""",
    "async, task left": """
async def main():
    global llm
    llm = AsyncLLM(LLM.from_files(deep, n_ctx=512, draft_tokens=3))
    asyncio.create_task(llm.generate('abc', temperature=0)); await asyncio.sleep(0.2)
asyncio.run(main())""",
    "async, load left": """
async def main():
    asyncio.create_task(AsyncLLM.load(deep, n_ctx=512)); await asyncio.sleep(0.01)
asyncio.run(main())""",
    "async, load raises": """
async def main():
    task = asyncio.create_task(AsyncLLM.load(deep, n_ctx=512)); await asyncio.sleep(0.01); sys.exit(0)
asyncio.run(main())""",
}


@pytest.mark.parametrize("case", list(EXITS))
def test_the_interpreter_ends_in_silence(files, tmp_path, case):
    arguments = [sys.executable, "-X", "faulthandler", "-c", START + EXITS[case]]
    done = subprocess.run(
        [*arguments, str(files["target"]), str(files["deep"]), str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "LOCALSPEC_HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
