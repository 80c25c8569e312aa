"""A long life inside an application, in short form: no leak, no mix-up. The long form is scripts/soak.py."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from localspec import LLM
from localspec.errors import LocalspecError, ModelLoadError

from .tinygguf import write_pair

GREEDY = {"temperature": 0, "max_tokens": 20}
OPTIONS = {"n_ctx": 512, "draft_tokens": 3}
PROMPTS = [letter * length for letter, length in zip("abcdefgh", range(30, 190, 20), strict=True)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("long"))


@pytest.fixture
def llm(files, computed_by):
    with LLM.from_files(*files, **OPTIONS, **computed_by) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(files, computed_by):
    """Each prompt's answer from an engine that knows nothing else."""
    with LLM.from_files(*files, **OPTIONS, **computed_by) as llm:
        answers = {}
        for prompt in PROMPTS:
            llm.forget()
            answers[prompt] = llm.generate(prompt, **GREEDY).ids
        return answers


LOADS = """
import ctypes, gc, sys, psutil
from localspec import LLM
# What glibc keeps of freed memory grows and shrinks by some percent, and is not held.
trim = getattr(ctypes.CDLL(None), "malloc_trim", int) if sys.platform == "linux" else int
def once():
    with LLM.from_files(*sys.argv[2:], n_ctx=512, draft_tokens=3, library=sys.argv[1]) as llm:
        for letter in "ab":
            llm.generate(letter * 100, max_tokens=8, temperature=0)
held = []
for _ in range(50):
    once()
    gc.collect()
    trim(0)
    held.append(psutil.Process().memory_info().rss)
print(held[9], held[-1])
"""


def test_memory_is_flat_when_a_pair_is_loaded_and_closed_fifty_times(files, library):
    done = subprocess.run(
        [sys.executable, "-c", LOADS, library.key, *map(str, files)],
        capture_output=True,
        text=True,
        check=True,
    )
    early, late = map(int, done.stdout.split())
    assert late <= 1.02 * early, f"{early} bytes became {late}"


def test_eight_threads_on_one_engine_each_get_their_own_answer(llm, alone):
    def ask(number: int) -> bool:
        prompts = PROMPTS[number:] + PROMPTS[:number]
        return all(llm.generate(prompt, **GREEDY).ids == alone[prompt] for prompt in prompts[:4])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [True] * 8


def test_threads_that_drop_cancel_and_ask_nonsense_leave_the_others_alone(llm, alone):
    def ask(number: int) -> list[bool]:
        right = []
        for prompt in PROMPTS[number:] + PROMPTS[:number]:
            if number == 1:
                stream = llm.stream(prompt, **GREEDY)
                next(stream)
                del stream
            elif number == 2:
                stream = llm.stream(prompt, **GREEDY)
                stream.cancel()
                list(stream)
            elif number == 3:
                with pytest.raises(LocalspecError):
                    llm.generate(prompt, temperature="hot")
            else:
                right.append(llm.generate(prompt, **GREEDY).ids == alone[prompt])
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(all(right) for right in pool.map(ask, range(4)))


def test_a_consumer_that_raises_does_not_keep_the_engine(llm, alone):
    def consume() -> None:
        for _ in llm.stream(PROMPTS[0], **GREEDY):
            raise RuntimeError("the application's own fault")

    for prompt in PROMPTS[:3]:
        with pytest.raises(RuntimeError):
            consume()
        with ThreadPoolExecutor(1) as pool:
            assert (
                pool.submit(lambda prompt=prompt: llm.generate(prompt, **GREEDY).ids).result(60)
                == alone[prompt]
            )


def test_a_stream_closed_by_another_thread_frees_the_engine(llm, alone):
    stream = llm.stream(PROMPTS[0], **GREEDY)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stream.close).result(60)
    assert [chunk.completion and chunk.completion.finish_reason for chunk in stream] == ["cancelled"]
    assert llm.generate(PROMPTS[1], **GREEDY).ids == alone[PROMPTS[1]]


def test_an_answer_that_waits_in_the_queue_is_cancelled_while_another_is_read(llm, alone):
    running = llm.stream(PROMPTS[0], **GREEDY)
    first = next(running)
    waiting = llm.stream(PROMPTS[1], logprobs=1, **GREEDY)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(list, waiting)
        while not llm._queue._waiting:
            time.sleep(0.001)
        waiting.cancel()
        completion = answer.result(60)[-1].completion
    assert (completion.finish_reason, completion.ids, completion.logprobs) == ("cancelled", (), ())
    assert completion.drafting and completion.stats.prompt_tokens > 0
    assert first.tokens + sum((chunk.tokens for chunk in running), ()) == alone[PROMPTS[0]]
    assert llm.generate(PROMPTS[1], **GREEDY).ids == alone[PROMPTS[1]]


def from_another_thread(call) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize("number", [0, 1, 4])
@pytest.mark.parametrize("model", ["target", "draft"])
def test_a_cancel_that_meets_any_pass_of_either_model(llm, alone, monkeypatch, model, number):
    """The first pass reads the prompt, later ones decode: the cells that a stopped pass left are not answered from."""
    context = getattr(llm.engine, model)
    passes, original = [], context.decode

    def decode(spans):
        passes.append(spans)
        if len(passes) == number + 1:
            from_another_thread(llm.cancel)
        return original(spans)

    llm.generate(PROMPTS[7], **GREEDY)
    monkeypatch.setattr(context, "decode", decode)
    assert llm.generate(PROMPTS[0], **GREEDY).finish_reason == "cancelled"
    for prompt in (PROMPTS[0], PROMPTS[7], PROMPTS[1]):
        assert llm.generate(prompt, **GREEDY).ids == alone[prompt]


def test_a_load_ended_by_another_thread_leaves_the_next_one_right(
    files, computed_by, native, alone, monkeypatch
):
    lines = []

    def log(*_args):
        lines.append(1)
        if len(lines) == 5:  # the library is reading the file
            from_another_thread(native.gate.stop)

    monkeypatch.setattr(native.lines.logger, "debug", log)
    with pytest.raises(ModelLoadError):
        LLM.from_files(*files, **OPTIONS, **computed_by)
    monkeypatch.undo()
    with LLM.from_files(*files, **OPTIONS, **computed_by) as llm:
        assert llm.generate(PROMPTS[0], **GREEDY).ids == alone[PROMPTS[0]]
