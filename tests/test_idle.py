"""Weights that are freed when nobody needs them, and come back; logs; use while closing."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref

import pytest

from localspec import LLM
from localspec.decoding.session import Span
from localspec.engine.draft_copy import load_engine
from localspec.errors import DecodeError, EngineClosed, InvalidRequest, LoadCancelled, ModelFileError
from localspec.system.load_watch import current_watch

from .tinygguf import write_llama, write_trio

GREEDY = {"temperature": 0, "max_tokens": 20}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_trio(tmp_path_factory.mktemp("idle"))


def load(files, **options):
    return LLM.from_files(files["target"], files["draft"], **{"n_ctx": 512, "draft_tokens": 3, **options})


def eventually(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_idle_weights_are_freed_and_come_back_with_the_same_answers(files):
    with load(files, unload_after=0.05) as llm:
        expected = llm.generate("abc", **GREEDY).ids
        settings, drafting = llm.settings, llm.drafting
        target = llm.engine.target
        # Not loaded any more as soon as nobody can get at it, which is a moment before it is freed.
        eventually(lambda: not llm.loaded and target._handle is None and target.weights._handle is None)
        assert (llm.settings, llm.drafting) == (settings, drafting) and not llm.loaded
        for _ in range(3):
            assert llm.generate("abc", **GREEDY).ids == expected
            eventually(lambda: not llm.loaded)
        assert list(llm.chat([{"role": "user", "content": "x"}], **GREEDY))[-1].completion.ids


def test_nothing_is_freed_during_an_answer_or_a_use(files):
    with load(files, unload_after=0.02) as llm:
        stream = llm.stream("abc", temperature=0)
        next(stream)
        time.sleep(0.2)
        assert llm.loaded and not llm.unload()
        stream.close()
        with llm.using() as engine:
            time.sleep(0.2)
            assert llm.loaded and engine.vocab.tokenize("abc", parse_special=False)


def test_a_stream_made_before_and_read_after_unloading(files):
    with load(files) as llm:
        expected = llm.generate("abc", **GREEDY).ids
        stream = llm.stream("abc", json_schema=None, **GREEDY)
        assert llm.unload() and not llm.loaded
        assert list(stream)[-1].completion.ids == expected
        assert llm.unload() and llm.unload()


def test_many_threads_while_it_is_unloaded_again_and_again(files):
    with load(files, unload_after=0.001) as llm:
        expected = llm.generate("abc", **GREEDY).ids
        answers = []

        def ask():
            for _ in range(6):
                answers.append(llm.generate("abc", **GREEDY).ids)
                llm.unload()

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert answers == [expected] * 24


def test_a_model_that_is_gone_is_an_error_until_it_is_back(files, tmp_path):
    path = tmp_path / "here.gguf"
    path.write_bytes(files["target"].read_bytes())
    with LLM.from_files(path, n_ctx=512, draft_tokens=3) as llm:
        expected = llm.generate("abc", **GREEDY).ids
        llm.unload()
        moved = path.rename(tmp_path / "gone.gguf")
        with pytest.raises(ModelFileError, match="no file"):
            llm.generate("abc", **GREEDY)
        moved.rename(path)
        assert llm.generate("abc", **GREEDY).ids == expected


def test_files_named_from_a_folder_are_found_again_from_another(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files["target"].parent)
    with LLM.from_files("target.gguf", "draft.gguf", n_ctx=512, draft_tokens=3) as llm:
        expected = llm.generate("abc", **GREEDY).ids
        monkeypatch.chdir(tmp_path)
        assert llm.unload()
        assert llm.generate("abc", **GREEDY).ids == expected


def test_a_file_that_was_replaced_by_another_model_is_not_loaded_again(files, tmp_path):
    """Ids that were checked or kept before would mean other texts, or none."""
    path = tmp_path / "here.gguf"
    path.write_bytes(files["target"].read_bytes())
    with LLM.from_files(path, n_ctx=512, draft_tokens=3) as llm:
        expected = llm.generate("abc", **GREEDY).ids
        talk = llm.conversation(**GREEDY)
        list(talk.ask("x"))
        stream = llm.stream([299], **GREEDY)
        for changes in ({"n_vocab": 310}, {"changed_tokens": {100: "other"}}):
            llm.unload()
            path.unlink()
            write_llama(path, seed=1, **changes)
            for use in (lambda: list(talk.ask("y")), lambda: next(stream), lambda: llm.tokenize("abc")):
                with pytest.raises((ModelFileError, StopIteration), match=r"another model|^$"):
                    use()
            assert not llm.loaded and len(talk.turns) == 1
        path.write_bytes(files["target"].read_bytes())
        assert llm.generate("abc", **GREEDY).ids == expected


def test_another_model_that_was_loaded_in_its_place_does_not_stay_in_memory(files, tmp_path, monkeypatch):
    """Also while somebody still holds the error, whose frames know it."""
    path, opened = tmp_path / "here.gguf", []
    path.write_bytes(files["target"].read_bytes())
    with LLM.from_files(path, n_ctx=512, draft_tokens=3) as llm:
        llm.unload()
        path.unlink()
        write_llama(path, seed=1, n_vocab=310)

        def noting(*arguments, **options):
            opened.append(load_engine(*arguments, **options))
            return opened[-1]

        monkeypatch.setattr("localspec.engine.keeper.load_engine", noting)
        with pytest.raises(ModelFileError, match="another model") as caught:
            llm.tokenize("abc")
        (engine,) = opened
        with pytest.raises(DecodeError, match="closed"):
            engine.target.decode([Span(0, (1,), 0, 1)])
        assert caught.value.remedy


def test_close_stops_the_timer_and_an_unloaded_engine_stays_closed(files):
    llm = load(files, unload_after=0.01)
    eventually(lambda: not llm.loaded)
    llm.close()
    llm.close()
    for use in (lambda: llm.generate("abc"), lambda: llm.engine, lambda: llm.conversation().ask("x")):
        with pytest.raises(EngineClosed):
            use()
    assert not llm.unload()
    eventually(lambda: not any(thread.name == "localspec idle" for thread in threading.enumerate()))


def loading_until_cancelled(patch) -> threading.Event:
    """Loads never end by themselves from now on; set once one has begun."""
    begun = threading.Event()

    def load_engine(*_arguments, **_options):
        watch = current_watch()
        begun.set()
        eventually(lambda: watch.cancelled)
        watch.check()

    patch.setattr("localspec.engine.keeper.load_engine", load_engine)
    return begun


def test_close_while_it_is_loaded_again(files, monkeypatch):
    """The load is told to end, and who waited for it hears that the engine is closed."""
    llm = load(files)
    llm.unload()
    outcome: list[EngineClosed] = []
    begun = loading_until_cancelled(monkeypatch)

    def ask():
        try:
            llm.generate("abc")
        except EngineClosed as error:
            outcome.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    begun.wait(30)
    llm.close()
    thread.join(30)
    assert len(outcome) == 1


def test_cancel_while_it_is_loaded_again_reaches_everybody_who_waits_and_nobody_later(files, monkeypatch):
    with load(files) as llm:
        expected = llm.generate("abc", **GREEDY).ids
        llm.unload()
        outcome: list[LoadCancelled] = []

        def ask():
            try:
                llm.generate("abc", **GREEDY)
            except LoadCancelled as error:
                outcome.append(error)

        with monkeypatch.context() as patched:
            begun = loading_until_cancelled(patched)
            threads = [threading.Thread(target=ask) for _ in range(3)]
            for thread in threads:
                thread.start()
            begun.wait(30)
            eventually(lambda: len(llm._queue._users) == 3)
            time.sleep(0.1)  # until all wait for the load
            llm.cancel()
            for thread in threads:
                thread.join(30)
        assert len(outcome) == 3 and not llm.loaded
        assert llm.generate("abc", **GREEDY).ids == expected


def test_a_dropped_llm_ends_its_timer(files):
    reference = weakref.ref(load(files, unload_after=1000))
    gc.collect()
    assert reference() is None
    eventually(lambda: not any(thread.name == "localspec idle" for thread in threading.enumerate()))


@pytest.mark.parametrize("value", [0, -1, "soon", True, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(files, value):
    with pytest.raises(InvalidRequest, match="unload_after"):
        load(files, unload_after=value)


def test_logs_tell_of_loads_requests_and_refusals(files, caplog):
    with caplog.at_level(logging.DEBUG, logger="localspec"), load(files) as llm:
        llm.generate("abc", **GREEDY)
        with pytest.raises(InvalidRequest):
            llm.generate("abc", top_p=7)
        llm.unload()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    for level, text in (
        ("INFO", "loaded target.gguf and draft.gguf"),
        ("DEBUG", "answering"),
        ("INFO", "answered: "),
        ("INFO", "refused: top_p"),
        ("INFO", "unloaded target.gguf"),
    ):
        assert any(level == found and message.startswith(text) for found, message in lines), text
    assert all(
        record.levelno == logging.DEBUG for record in caplog.records if record.name == "localspec.llama"
    )
    assert any(record.name == "localspec.llama" for record in caplog.records)
    assert not any("abc" in message for _, message in lines)
