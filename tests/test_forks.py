"""A forked process has a model's memory and none of the library's threads: it hears so, and does not wait for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .tinygguf import write_pair

SECONDS = 60
PARENT = """
import multiprocessing, os, sys, threading
from localspec import LLM
from localspec.errors import BackendError
options = dict(n_ctx=512, draft_tokens=3, threads=2, library=sys.argv[1])
greedy = dict(temperature=0, max_tokens=10)
def load():
    return LLM.from_files(*sys.argv[2:], **options)
llm = load()
expected = llm.generate("abc", **greedy).ids
def forked(work):
    def run():
        try:
            work()
        except BackendError as error:
            sys.exit(7 if "spawn" in error.remedy or "process" in error.remedy else 8)
    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(20)
    code = child.exitcode
    child.kill()
    return code
"""
WORKS = {
    "generate": "llm.generate('abc')",
    "stream": "next(llm.stream('abc'))",
    "read on": "next(stream)",
    "tokenize": "llm.tokenize('abc')",
    "forget": "llm.forget()",
    "load": "load()",
    "background": "loading.result()",
    "cancel": "llm.cancel()",
    "unload": "llm.unload()",
    "close": "llm.close()",
    "nothing": "None",
}
REFUSED = ("generate", "stream", "read on", "tokenize", "forget", "load", "background")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return [str(file) for file in write_pair(tmp_path_factory.mktemp("forks"))]


def run(code, library, files):
    command = [sys.executable, "-c", PARENT + code, library.key, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS * 5)
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ") for line in done.stdout.splitlines())


def test_a_forked_process_is_refused_at_once_and_the_parent_goes_on(files, library):
    code = "stream = llm.stream('abc', **greedy)\nfirst = next(stream)\n"
    code += "hold = threading.Event()\n"
    code += "loading = LLM.load_in_background(*sys.argv[2:], on_progress=lambda _: hold.wait(), **options)\n"
    for name, work in WORKS.items():
        code += f"print({name!r}, forked(lambda: {work}), sep=': ')\n"
    code += "hold.set()\nloading.result().close()\n"
    code += "rest = first.tokens + sum((chunk.tokens for chunk in stream), ())\n"
    code += "print('parent', rest == expected == llm.generate('abc', **greedy).ids, sep=': ')\n"
    code += "with llm._queue._changed:\n"
    for name, work in (("locked close", "llm.close()"), ("locked exit", "sys.exit(0)")):
        code += f"    print({name!r}, forked(lambda: {work}), sep=': ')\n"
    got = run(code, library, files)
    assert got.pop("parent") == "True"
    assert got == {name: "7" if name in REFUSED else "0" for name in (*WORKS, "locked close", "locked exit")}


def test_a_forked_process_drops_an_answer_of_a_seat(files, library):
    code = "llm = LLM.from_files(*sys.argv[2:], parallel=2, **options)\n"
    code += "streams = [llm.stream('abc', max_tokens=400, ignore_eos=True)]\nnext(streams[0])\n"
    code += "print('drop', forked(streams.clear), sep=': ')\nllm.close()\n"
    assert run(code, library, files) == {"drop": "0"}


def test_a_process_forked_before_any_model_is_loaded_may_load(files, library):
    code = PARENT.split("llm = load()")[0] + (
        "child = multiprocessing.get_context('fork').Process(\n"
        "    target=lambda: sys.exit(len(load().generate('abc', **greedy).ids)))\n"
        "child.start()\nchild.join(20)\nprint('child', child.exitcode, sep=': ')\nchild.kill()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, library.key, *files], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.stdout == "child: 10\n", done.stderr
