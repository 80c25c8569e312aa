"""`close(wait=False)`: whoever closes goes on at once, and what "closed" means is the same."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading

import pytest

from localspec import LLM, AsyncLLM
from localspec.engine.engine import Engine
from localspec.errors import EngineClosed

from .tinygguf import write_trio

GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_trio(tmp_path_factory.mktemp("closing"))


@pytest.fixture
def load(files, library):
    def load(name="target", **options):
        return LLM.from_files(files[name], n_ctx=512, draft_tokens=3, library=library.key, **options)

    return load


@pytest.fixture
def held(monkeypatch):
    """Freeing takes until this is set; `held.begun` is set when it begins."""
    held, original = threading.Event(), Engine.close
    held.begun = threading.Event()

    def slowly(self):
        held.begun.set()
        assert held.wait(60)
        original(self)

    monkeypatch.setattr(Engine, "close", slowly)
    yield held
    held.set()


def is_freed(target):
    return target._handle is None and target.weights._handle is None


def test_it_returns_while_memory_is_freed_and_nobody_comes_in(load, held):
    llm = load()
    target, stream = llm.engine.target, llm.stream("abc")
    llm.close(wait=False)
    assert held.begun.wait(30) and not is_freed(target)
    assert [chunk.completion.finish_reason for chunk in stream] == ["cancelled"]
    for use in (lambda: llm.stream("abc"), lambda: llm.tokenize("abc"), lambda: llm.engine):
        with pytest.raises(EngineClosed):
            use()
    llm.close(wait=False)
    held.set()
    llm.close()
    assert is_freed(target) and not llm.loaded


def test_close_waits_for_what_another_thread_frees(load, held):
    llm = load()
    target = llm.engine.target
    llm.close(wait=False)
    assert held.begun.wait(30)
    seen = []
    waiting = threading.Thread(target=lambda: (llm.close(), seen.append(is_freed(target))))
    waiting.start()
    waiting.join(0.3)
    assert seen == []
    held.set()
    waiting.join(30)
    assert seen == [True]


def test_the_end_of_a_with_block_waits(load, held):
    threading.Timer(0.2, held.set).start()
    with load() as llm:
        target = llm.engine.target
        llm.close(wait=False)
    assert is_freed(target)


def test_a_running_answer_and_those_that_wait_end_as_cancelled(load):
    llm = load("deep")
    target, outcomes, begun = llm.engine.target, [], threading.Event()

    def ask():
        *_, last = (begun.set() or chunk for chunk in llm.stream("abc", **GREEDY))
        outcomes.append(last.completion.finish_reason)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    llm.close(wait=False)
    for thread in threads:
        thread.join(30)
    assert outcomes == ["cancelled"] * 3
    llm.close()
    assert is_freed(target)


def test_in_the_loop_that_reads_and_in_a_callback(load):
    for where in ("loop", "callback"):
        llm = load()
        target = llm.engine.target

        def processor(_ids, _logits, llm=llm, where=where):
            if where == "callback":
                llm.close(wait=False)

        chunks = []
        for chunk in llm.stream("abc", logits_processors=[processor], **GREEDY):
            chunks.append(chunk)
            if where == "loop":
                llm.close(wait=False)
        assert chunks[-1].completion.finish_reason == "cancelled"
        llm.close()
        assert is_freed(target)


def test_one_that_is_dropped_then_is_freed_all_the_same(load, held):
    llm = load()
    target = llm.engine.target
    llm.close(wait=False)
    del llm
    gc.collect()
    assert held.begun.wait(30)
    held.set()
    for thread in threading.enumerate():
        if thread.name == "localspec close":
            thread.join(30)
    assert is_freed(target)


def test_without_a_thread_to_do_it_in_it_is_done_here(load, monkeypatch):
    llm = load()
    target = llm.engine.target

    def refuse(_thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    llm.close(wait=False)
    assert is_freed(target)


def test_the_loop_goes_on_while_an_async_engine_is_closed(load, held):
    """Only the loop lets the freeing end: it would never come to that if it was held up."""

    async def close() -> bool:
        engine = AsyncLLM(load())
        target = engine.llm.engine.target
        closing = asyncio.create_task(engine.close())
        while not held.begun.is_set():
            await asyncio.sleep(0.01)
        held.set()
        await closing
        return is_freed(target)

    assert asyncio.run(close())


@pytest.mark.parametrize("moment", ["idle", "answering", "loading"])
def test_the_interpreter_ends_in_silence_right_behind_it(files, library, moment):
    code = (
        "import sys, threading\n"
        "from localspec import LLM\n"
        "moment, library, path = sys.argv[1:]\n"
        "loading = LLM.load_in_background(path, n_ctx=512, draft_tokens=3, library=library)\n"
        "if moment == 'loading':\n"
        "    loading.cancel() or loading.result().close(wait=False)\n"
        "    sys.exit()\n"
        "llm = loading.result()\n"
        "begun = threading.Event()\n"
        "def read():\n"
        "    for chunk in llm.stream('abc', temperature=0): begun.set()\n"
        "if moment == 'answering':\n"
        "    threading.Thread(target=read, daemon=True).start(); begun.wait()\n"
        "llm.close(wait=False)\n"
    )
    argv = [sys.executable, "-c", code, moment, library.key, files["deep"]]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
