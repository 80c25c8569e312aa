"""Models in a process of their own, on servers of llama.cpp's RPC backend: what goes through, and what is refused.

The compiled library of the tests need not know servers: here the process computes by itself. `scripts/rpc_check.py`
does the rest with a real server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from localspec import LLM, AsyncLLM, Conversation
from localspec.cli import main as command
from localspec.doctor import rpc as doctor
from localspec.engine.contexts import layers_elsewhere
from localspec.engine.kept import Order
from localspec.engine.libraries import reference
from localspec.engine.loading import watched
from localspec.engine.options import EngineOptions
from localspec.errors import (
    BackendError,
    EngineClosed,
    InvalidRequest,
    LoadCancelled,
    LocalspecError,
    ModelFileError,
    ModelLoadError,
    PromptTooLong,
    RpcError,
)
from localspec.llama import backend, devices
from localspec.remote import keeper as keeping
from localspec.remote.asking import Asking
from localspec.remote.keeper import RemoteKeeper
from localspec.system.load_watch import LoadWatch, watching
from localspec.system.progress import Progress, Stage
from localspec.system.rpc_servers import MOST, checked_addresses, greet

from .serverkit import QUESTION, ready, running
from .tinygguf import write_llama, write_pair

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
ENDLESS: dict[str, Any] = {"temperature": 0, "max_tokens": 400}
LOADED: dict[str, Any] = {"n_ctx": 512, "threads": 1, "library": "llama"}
SECONDS = 60.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("rpc"))


@pytest.fixture(scope="module")
def near(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """The same pair in this process."""
    home = tmp_path_factory.mktemp("near")
    with LLM.from_files(*files, draft_tokens=3, home=home, **LOADED) as llm:
        yield llm


def keeper_of(files: tuple[Path, Path], home: Path, **options: Any) -> RemoteKeeper:
    order = Order(*files, EngineOptions(**LOADED, **options), 3, home)
    return RemoteKeeper(order, lambda sentence: None)


@pytest.fixture
def keeper(files: tuple[Path, Path], tmp_path: Path) -> Iterator[RemoteKeeper]:
    keeper = keeper_of(files, tmp_path)
    yield keeper
    keeper.close()


@pytest.fixture
def llm(keeper: RemoteKeeper) -> Iterator[LLM]:
    with LLM(keeper) as llm:
        yield llm


def kill(keeper: RemoteKeeper) -> None:
    assert keeper.pid is not None
    psutil.Process(keeper.pid).kill()


def until(true: Callable[[], object]) -> None:
    ends = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < ends, "it did not come to pass"
        time.sleep(0.02)


# Answers


@pytest.mark.parametrize(
    "options",
    [
        GREEDY,
        {"temperature": 0.9, "seed": 7, "max_tokens": 30, "logprobs": 2},
        {"temperature": 0, "max_tokens": 12, "draft_tokens": "off", "logit_bias": {70: 5.0}},
        {"temperature": 0, "max_tokens": 20, "grammar": 'root ::= "a" [b-d]+', "stop": ["dd"]},
        {"temperature": 0, "max_tokens": 20, "json_schema": {"type": "integer"}},
        {"temperature": 0, "max_tokens": 4, "logprobs": 1, "prompt_logprobs": True, "prediction": "abcabc"},
        {"max_tokens": 0},
    ],
)
def test_chunk_by_chunk_an_answer_is_that_of_this_process(llm: LLM, near: LLM, options: Any) -> None:
    near.forget()
    theirs, ours = list(near.stream("abc", **options)), list(llm.stream("abc", **options))
    assert [chunk.text for chunk in ours] == [chunk.text for chunk in theirs]
    assert [chunk.tokens for chunk in ours] == [chunk.tokens for chunk in theirs]
    one, other = ours[-1].completion, theirs[-1].completion
    assert one is not None and other is not None
    assert (one.ids, one.text, one.finish_reason, one.drafted, one.text_ends, one.seed, one.drafting) == (
        other.ids, other.text, other.finish_reason, other.drafted, other.text_ends, other.seed, other.drafting,
    )  # fmt: skip
    assert (one.stats.drafted, one.stats.accepted) == (other.stats.drafted, other.stats.accepted)
    for of_one, of_other in ((one.logprobs, other.logprobs), (one.prompt_logprobs, other.prompt_logprobs)):
        assert (of_one is None) == (of_other is None)
        assert [entry and entry.token for entry in of_one or ()] == [
            entry and entry.token for entry in of_other or ()
        ]


def test_prompts_are_made_here_and_read_there(llm: LLM, near: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert llm.render(messages) == near.render(messages)
    assert llm.tokenize("there it is") == near.tokenize("there it is")
    assert llm.detokenize([70, 71, 72]) == near.detokenize([70, 71, 72])
    assert llm.template.source == near.template.source
    assert llm.generate(messages, **GREEDY).ids == near.generate(messages, **GREEDY).ids


def test_a_conversation_goes_on_is_taken_back_kept_and_resumed(llm: LLM, near: LLM, tmp_path: Path) -> None:
    def talk(model: LLM) -> tuple[Conversation, list[str]]:
        near.forget()
        talk = model.conversation("Be brief.", temperature=0.8, seed=3, max_tokens=12)
        for text in ("hello", "and then", "no"):
            list(talk.ask(text))
        list(talk.regenerate())
        talk.undo()
        return talk, [turn.answer for turn in talk.turns]

    (ours, said), (_, expected) = talk(llm), talk(near)
    assert said == expected and len(said) == 2
    ours.save(tmp_path / "talk")
    resumed = Conversation.load(llm, tmp_path / "talk")
    assert resumed.messages == ours.messages and "read again" in resumed.restored
    list(resumed.ask("go on"))
    list(ours.ask("go on"))
    assert resumed.messages == ours.messages


def test_a_conversation_saved_with_its_state_says_that_it_is_read_again(
    llm: LLM, near: LLM, tmp_path: Path
) -> None:
    talk = near.conversation(temperature=0, max_tokens=8)
    list(talk.ask("hello"))
    talk.save(tmp_path / "talk")
    resumed = Conversation.load(llm, tmp_path / "talk")
    assert resumed.messages == talk.messages and "read again" in resumed.restored


def test_what_is_read_is_kept_and_can_be_forgotten(llm: LLM) -> None:
    llm.generate("a long enough prompt", **GREEDY)
    assert llm.generate("a long enough prompt", **GREEDY).stats.cached_tokens > 0
    llm.forget()
    assert llm.generate("a long enough prompt", **GREEDY).stats.cached_tokens == 0


def test_settings_and_warnings_are_those_of_the_process(files: tuple[Path, Path], tmp_path: Path) -> None:
    keeper = RemoteKeeper(
        Order(*files, EngineOptions(**{**LOADED, "n_ctx": 4096}, parallel=3), 99, tmp_path),
        lambda sentence: None,
    )
    with LLM(keeper) as llm:
        assert llm.parallel == 1 and llm.seats == ()
        assert any("parallel is 3, and with RPC servers one" in warning for warning in llm.warnings)
        assert any("trained for no more" in warning for warning in llm.warnings)
        assert any("draft_tokens is 99" in warning for warning in llm.warnings)
        assert llm.settings["target"]["n_ctx"] == 512  # type: ignore[index]
        assert json.loads(json.dumps(llm.settings))["draft"]["file"] == str(files[1])
        assert llm.drafting.startswith("on")


def test_asyncio_and_a_server_answer_as_ever(keeper: RemoteKeeper, near: LLM) -> None:
    async def ask() -> tuple[int, ...]:
        async with AsyncLLM(LLM(keeper)) as llm:
            return (await llm.generate("abc", **GREEDY)).ids

    assert asyncio.run(ask()) == near.generate("abc", **GREEDY).ids


def test_a_server_tells_of_the_loss_and_answers_again(
    keeper: RemoteKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"messages": QUESTION, "max_tokens": 20}
    begun, begin = threading.Event(), Asking.begin

    def noted(self: Asking, name: str, *arguments: object) -> int:
        number = begin(self, name, *arguments)
        if name == "start":
            begun.set()
        return number

    with running(lambda: LLM(keeper)) as server, ThreadPoolExecutor() as threads:
        first = ready(server).post("/v1/chat/completions", body)
        monkeypatch.setattr(Asking, "begin", noted)
        assert keeper.pid is not None
        psutil.Process(keeper.pid).suspend()
        asked = threads.submit(server.post, "/v1/chat/completions", body)
        assert begun.wait(SECONDS)
        kill(keeper)
        lost = asked.result()
        again = server.post("/v1/chat/completions", body)
        props = server.get("/props").json()
    assert first.status_code == 200 and again.status_code == 200
    assert again.json()["choices"] == first.json()["choices"]
    assert lost.status_code == 500 and "The process that computes" in lost.json()["error"]["message"]
    assert props["default_generation_settings"]["n_ctx"] == 512


def gone(pid: int | None) -> bool:
    """Whether a process has ended, waited for or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# Ends


def test_a_cancel_keeps_what_was_said(llm: LLM, near: LLM) -> None:
    stream = llm.stream("abc", **ENDLESS)
    first = next(stream)
    stream.cancel()
    completion = list(stream)[-1].completion
    assert completion is not None and completion.finish_reason == "cancelled"
    assert completion.ids[: len(first.tokens)] == first.tokens and len(completion.ids) < 400
    assert llm.generate("abc", **GREEDY).ids == near.generate("abc", **GREEDY).ids


def test_a_cancel_from_another_thread_ends_a_pass(files: tuple[Path, Path], tmp_path: Path) -> None:
    deep = write_llama(tmp_path / "deep.gguf", seed=1, n_layer=40)
    keeper = RemoteKeeper(Order(deep, None, EngineOptions(**LOADED), 0, tmp_path), lambda sentence: None)
    with LLM(keeper) as llm:
        stream = llm.stream([70] * 400, **ENDLESS)
        threading.Timer(0.05, llm.cancel).start()
        completion = list(stream)[-1].completion
    assert completion is not None and completion.finish_reason == "cancelled" and len(completion.ids) < 100


def test_a_cancel_that_comes_while_an_answer_is_started_is_not_lost(keeper: RemoteKeeper) -> None:
    asking = keeper._asking
    assert asking is not None
    asking.cancel(asking.begin("leave") + 1)
    asking.wait(asking.begin("start", [1, 2, 3], ENDLESS))
    chunk, _ = asking.ask("next")
    assert chunk.completion.finish_reason == "cancelled"


def test_one_that_was_cancelled_before_it_began_says_so(llm: LLM) -> None:
    stream = llm.stream("abc", **GREEDY)
    llm.cancel()
    (chunk,) = stream
    assert chunk.completion is not None and chunk.completion.finish_reason == "cancelled"


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_a_reader_that_leaves_frees_the_process(llm: LLM, near: LLM, leave: str) -> None:
    stream = llm.stream("abc", **ENDLESS)
    next(stream)
    if leave == "close":
        stream.close()
        last = list(stream)[-1].completion
        assert last is not None and last.finish_reason == "cancelled"
    del stream
    assert llm.generate("abc", **GREEDY).ids == near.generate("abc", **GREEDY).ids


def test_a_wait_that_is_broken_off_leaves_no_answer_for_the_next(llm: LLM, keeper: RemoteKeeper) -> None:
    expected = llm.generate("xyz", **GREEDY).ids
    stream = llm.stream("abc", **ENDLESS)
    next(stream)
    assert keeper._asking is not None
    keeper._asking.begin("next")  # asked, and nobody waits: as after Ctrl-C
    del stream
    assert llm.generate("xyz", **GREEDY).ids == expected


def test_close_ends_the_process_and_what_comes_after_it_is_refused(llm: LLM, keeper: RemoteKeeper) -> None:
    pid, stream = keeper.pid, llm.stream("abc", **ENDLESS)
    next(stream)
    llm.close()
    last = list(stream)[-1].completion
    assert last is not None and last.finish_reason == "cancelled"
    assert pid is not None and not psutil.pid_exists(pid) and not llm.loaded
    with pytest.raises(EngineClosed):
        llm.generate("abc", **GREEDY)
    with pytest.raises(EngineClosed):
        _ = llm.settings
    llm.close()


def test_what_is_unloaded_comes_again(llm: LLM, keeper: RemoteKeeper) -> None:
    expected, pid = llm.generate("abc", **GREEDY).ids, keeper.pid
    assert llm.unload() and not llm.loaded and llm.settings and llm.drafting
    assert pid is not None and not psutil.pid_exists(pid)
    assert llm.generate("abc", **GREEDY).ids == expected and llm.loaded and keeper.pid != pid


def test_another_file_in_the_place_of_the_target_is_refused(tmp_path: Path) -> None:
    files = write_pair(tmp_path)
    with LLM(keeper_of(files, tmp_path)) as llm:
        assert llm.unload()
        write_llama(files[0], seed=9, n_layer=1)
        with pytest.raises(ModelFileError, match="another model than the one"):
            llm.generate("abc", **GREEDY)


def test_it_is_refused_after_a_loss_too(tmp_path: Path) -> None:
    files = write_pair(tmp_path)
    keeper = keeper_of(files, tmp_path)
    with LLM(keeper) as llm:
        kill(keeper)
        until(lambda: not llm.loaded)
        write_llama(files[0], seed=9, n_layer=1)
        with pytest.raises(ModelFileError, match="another model than the one"):
            llm.generate("abc", **GREEDY)


# The process is lost


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_its_end_in_an_answer_is_an_error_and_the_next_use_loads_again(
    llm: LLM, keeper: RemoteKeeper
) -> None:
    expected = llm.generate("abc", **GREEDY).ids
    stream = llm.stream("abc", **ENDLESS)
    next(stream)
    assert keeper.pid is not None
    os.kill(keeper.pid, signal.SIGABRT)
    with pytest.raises(RpcError) as caught:
        list(stream)
    assert caught.value.code == -signal.SIGABRT and "SIGABRT" in caught.value.message
    assert "loaded anew" in caught.value.remedy
    assert not llm.loaded and llm.settings["target"]
    assert llm.generate("abc", **GREEDY).ids == expected and llm.loaded


def test_its_end_in_idle_moments_is_no_loss(llm: LLM, keeper: RemoteKeeper) -> None:
    talk = llm.conversation(temperature=0, max_tokens=8)
    list(talk.ask("hello"))
    pid = keeper.pid
    kill(keeper)
    until(lambda: not llm.loaded)
    list(talk.ask("and then"))
    assert len(talk.turns) == 2 and keeper.pid != pid


def test_a_lost_process_and_a_lost_server_are_both_told(files: tuple[Path, Path], tmp_path: Path) -> None:
    keeper = keeper_of(files, tmp_path)
    with LLM(keeper) as llm:
        assert keeper._asking is not None
        keeper._asking._addresses = [f"127.0.0.1:{free_port()}"]
        stream = llm.stream("abc", **ENDLESS)
        next(stream)
        kill(keeper)
        with pytest.raises(
            RpcError, match=r"RPC server 127\.0\.0\.1:\d+ cannot be reached.*was ended"
        ) as caught:
            list(stream)
    assert caught.value.remedy.startswith("Start the servers")


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="signals")
def test_a_process_that_does_not_stop_after_a_cancel_is_ended(
    llm: LLM, keeper: RemoteKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "CANCEL_SECONDS", 0.3)
    expected = llm.generate("abc", **GREEDY).ids
    stream, pid = llm.stream("abc", **ENDLESS), keeper.pid
    first = next(stream)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    stream.cancel()
    completion = list(stream)[-1].completion
    assert completion is not None and completion.finish_reason == "cancelled"
    assert completion.ids == first.tokens and completion.text == first.text
    assert not psutil.pid_exists(pid)
    assert llm.generate("abc", **GREEDY).ids == expected


_HOLDER = """
import sys, time
from pathlib import Path
from tests.test_rpc import keeper_of
keeper = keeper_of((Path(sys.argv[1]), Path(sys.argv[2])), Path(sys.argv[3]))
print(keeper.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_the_process_that_started_it(files: tuple[Path, Path], tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _HOLDER, *map(str, files), str(tmp_path)]
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=root) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        assert psutil.pid_exists(pid)
        holder.kill()
    until(lambda: gone(pid))


def test_an_llm_that_is_dropped_ends_it(files: tuple[Path, Path], tmp_path: Path) -> None:
    keeper = keeper_of(files, tmp_path)
    pid = keeper.pid
    del keeper
    until(lambda: gone(pid))


_FORKING = """
import os, sys
from pathlib import Path
from localspec import LLM
from localspec.errors import BackendError
from tests.test_rpc import GREEDY, keeper_of
with LLM(keeper_of((Path(sys.argv[1]), Path(sys.argv[2])), Path(sys.argv[3]))) as llm:
    before = llm.generate("abc", **GREEDY).ids
    if not (pid := os.fork()):
        try:
            llm.generate("abc", **GREEDY)
        except BackendError as error:
            llm.close()
            os._exit(7 if "forked" in error.message else 8)
        os._exit(9)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), llm.generate("abc", **GREEDY).ids == before)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_forked_process_is_refused_and_leaves_it_alone(files: tuple[Path, Path], tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _FORKING, *map(str, files), str(tmp_path)]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.split() == ["7", "True"]


# Loading


def test_a_load_is_told_of_and_its_errors_come_through(files: tuple[Path, Path], tmp_path: Path) -> None:
    heard: list[Progress] = []
    order = Order(*files, EngineOptions(**LOADED), 3, tmp_path)
    with LLM(watched(lambda say: RemoteKeeper(order, say), heard.append)):
        stages = [progress.stage for progress in heard]
        assert Stage.LOAD in stages and stages.count(Stage.READY) == 1 and stages[-1] is Stage.READY
        shares = [progress.fraction for progress in heard]
        assert shares == sorted(shares)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(files[0].read_bytes()[:2000])
    with pytest.raises((ModelFileError, ModelLoadError), match=r"damaged\.gguf"):
        keeper_of((damaged, files[1]), tmp_path)


def test_a_cancelled_load_ends_its_process(files: tuple[Path, Path], tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    watch = LoadWatch(lambda progress: watch.cancel())
    with pytest.raises(LoadCancelled), watching(watch):
        keeper_of(files, tmp_path)
    until(lambda: set(psutil.Process().children(recursive=True)) <= before)


def test_a_listener_that_raises_ends_the_load(files: tuple[Path, Path], tmp_path: Path) -> None:
    def fail(progress: Progress) -> None:
        raise ZeroDivisionError

    order = Order(*files, EngineOptions(**LOADED), 3, tmp_path)
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ZeroDivisionError):
        watched(lambda say: RemoteKeeper(order, say), fail)
    until(lambda: set(psutil.Process().children(recursive=True)) <= before)


def test_the_library_here_must_know_servers(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend.library(), "llama_supports_rpc", lambda: False)
    with pytest.raises(BackendError, match="compiled without RPC") as caught:
        LLM.from_files(*files, rpc="127.0.0.1:50052", home=tmp_path)
    assert 'CMAKE_ARGS="-DGGML_RPC=on"' in caught.value.remedy


@pytest.mark.parametrize("option", ["rpc", "draft_rpc"])
def test_servers_are_greeted_before_anything_is_loaded(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(backend.library(), "llama_supports_rpc", lambda: True)
    monkeypatch.setattr(keeping, "Asking", lambda addresses: pytest.fail("a process was started"))
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(RpcError, match="cannot be reached") as caught:
        LLM.load(files[0], files[1], home=tmp_path, **{option: [address]})
    assert caught.value.addresses == [address]


def test_a_draft_server_without_a_draft_is_warned_of(files: tuple[Path, Path], tmp_path: Path) -> None:
    keeper = keeper_of(files, tmp_path, no_draft=True)
    keeper.order = Order(*files, EngineOptions(**LOADED, no_draft=True, draft_rpc="a:1"), 3, tmp_path)
    assert keeper._about_servers("auto") == [
        "draft_rpc is a:1, and no draft model is loaded: nothing is put there."
    ]
    keeper.close()


# What is refused


def test_what_needs_the_engine_itself_is_refused(llm: LLM) -> None:
    for use in (
        lambda: llm.engine,
        lambda: llm.controller("auto"),
        llm.calibrate,
        lambda: llm.using().__enter__().branch(),
    ):
        with pytest.raises(RpcError, match="in a process of their own"):
            use()
    with pytest.raises(InvalidRequest, match="functions of this process"):
        llm.stream("abc", logits_processors=[lambda ids, logits: logits])


def test_a_request_is_refused_at_the_call(llm: LLM) -> None:
    with pytest.raises(PromptTooLong):
        llm.stream("x" * 5000)
    with pytest.raises(InvalidRequest, match="grammar"):
        llm.stream("abc", grammar="nothing")
    with pytest.raises(InvalidRequest, match="no option"):
        llm.stream("abc", temprature=1)  # type: ignore[call-arg]


def test_only_llama_cpp_computes_with_servers(files: tuple[Path, Path]) -> None:
    with pytest.raises(InvalidRequest, match="library is ik, and only llama"):
        EngineOptions(rpc="a:1", library="ik")
    from localspec.engine.choice import choose
    from localspec.gguf.metadata import read_metadata

    chosen = choose(read_metadata(files[0]), None, EngineOptions(rpc="a:1"), None)
    assert chosen.library is reference() and "RPC" in chosen.reason


def test_layers_go_to_servers_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "supports_gpu", lambda: False)
    far, none = layers_elsewhere(reference(), EngineOptions(rpc="a:1"))
    assert far == backend.ALL_LAYERS and none == 0
    assert layers_elsewhere(reference(), EngineOptions(rpc="a:1", gpu_layers=3, draft_rpc="a:1")) == (
        3,
        backend.ALL_LAYERS,
    )
    with pytest.raises(InvalidRequest, match="gpu_layers is -1"):
        layers_elsewhere(reference(), EngineOptions(rpc="a:1", gpu_layers=-1))


def test_a_build_that_knows_servers_has_no_gpu_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.library(), "llama_supports_gpu_offload", lambda: True)
    monkeypatch.setattr(backend.library(), "llama_supports_rpc", lambda: True)
    assert backend.supports_gpu() == devices.has_gpu()


# Addresses and what answers there


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("", ()),
        ("  ", ()),
        ((), ()),
        ("box:50052", ("box:50052",)),
        (" 10.0.0.1:1 , box.local:65535,box.local:65535", ("10.0.0.1:1", "box.local:65535")),
        (["a:1", "b:02"], ("a:1", "b:2")),
    ],
)
def test_addresses_come_in_one_text_or_in_several(given: Any, addresses: tuple[str, ...]) -> None:
    assert checked_addresses("rpc", given) == addresses
    assert EngineOptions(rpc=given).rpc == addresses == EngineOptions(draft_rpc=given).draft_rpc


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("box", "'box', which is not HOST:PORT"),
        ("box:1,", "'', which is not HOST:PORT"),
        (":50052", "':50052', which is not"),
        ("http://box:1", "which is not HOST:PORT"),
        ("::1:50052", "which is not HOST:PORT"),
        ("[::1]:50052", "which is not HOST:PORT"),
        ("a b:1", "which is not HOST:PORT"),
        ("box:", "whose port is ''"),
        ("box:0", "whose port is '0'"),
        ("box:65536", "whose port is '65536'"),
        ("box:-1", "whose port is '-1'"),
        ("box:x", "whose port is 'x'"),
        ("box:٣", "whose port is"),
        ([7], "rpc is 7, which is not"),
        (7, "rpc is 7"),
        (b"a:1", "rpc is b'a:1'"),
        ([f"box:{port}" for port in range(1, MOST + 2)], f"a list of {MOST + 1} servers"),
    ],
)
def test_an_address_that_is_none_is_refused_with_its_value(given: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked_addresses("rpc", given)
    assert said in caught.value.message and caught.value.remedy


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of somebody who listens; `serve` gets each connection."""
    left = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def accept() -> None:
            while not left.is_set():
                with suppress(TimeoutError):
                    connection, _ = server.accept()
                    with connection:
                        connection.settimeout(None)
                        serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            left.set()
            thread.join(SECONDS)


def speaking(version: tuple[int, int, int], *memory: tuple[int, int]) -> Callable[[socket.socket], None]:
    """As an RPC server does when it is greeted and asked for its devices."""

    def serve(connection: socket.socket) -> None:
        while head := connection.recv(9, socket.MSG_WAITALL):
            code, size = struct.unpack("<BQ", head)
            argument = connection.recv(size, socket.MSG_WAITALL) if size else b""
            if code == 14:
                answer = bytes((*version, 0)) + bytes(24)
            elif code == 15:
                answer = struct.pack("<I", len(memory))
            else:
                assert code == 11
                answer = struct.pack("<QQ", *memory[struct.unpack("<I", argument)[0]])
            connection.sendall(struct.pack("<Q", len(answer)) + answer)

    return serve


def silent(connection: socket.socket) -> None:
    while connection.recv(1 << 10):
        pass


def test_a_server_that_answers_tells_its_version_and_memory() -> None:
    with listening(speaking((7, 0, 0), (5, 8), (1, 2))) as address:
        server = greet(address)
    assert server.version == (7, 0, 0) and server.memory == ((5, 8), (1, 2)) and server.address == address


@pytest.mark.parametrize(
    ("serve", "said", "remedy"),
    [
        (silent, "says nothing for 0.3 s", "one program at a time"),
        (lambda connection: None, "ends the connection", "same llama.cpp"),
        (lambda connection: connection.sendall(b"HTTP/1.1 400 no\r\n\r\n"), "ends the connection", "same"),
        (speaking((6, 0, 0), (5, 8)), "version 6.0.0 of the RPC protocol", "same llama.cpp"),
        (speaking((7, 1, 0), (5, 8)), "version 7.1.0 of the RPC protocol", "same llama.cpp"),
        (speaking((7, 0, 0)), "has 0 devices", "with a device"),
    ],
)
def test_what_is_no_usable_server_is_told_apart(
    serve: Callable[[socket.socket], None], said: str, remedy: str
) -> None:
    with listening(serve) as address, pytest.raises(RpcError) as caught:
        greet(address, 0.3)
    assert address in caught.value.message and said in caught.value.message
    assert remedy in caught.value.remedy and caught.value.addresses == [address]


def test_nobody_there_is_told_apart() -> None:
    with pytest.raises(RpcError, match="cannot be reached"):
        greet(f"127.0.0.1:{free_port()}")
    with pytest.raises(RpcError, match="has no IPv4 address"):
        greet("nobody.invalid:50052")


# The command line


def test_the_doctor_says_what_is_at_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.system.rpc_servers.SECONDS", 0.3)
    monkeypatch.setattr(doctor, "greet", lambda address: greet(address, 0.3))
    with listening(speaking((7, 0, 0), (5_000_000_000, 8_000_000_000))) as good, listening(silent) as mute:
        closed = f"127.0.0.1:{free_port()}"
        found = {finding.topic: finding for finding in doctor.check_rpc([good, mute, closed])}
    assert found["RPC"].status.value in ("ok", "problem")
    assert found["RPC"].data["compiled"] is backend.library().llama_supports_rpc()
    assert "5.00 GB of 8.00 GB free" in found[f"RPC server {good}"].fact
    assert found[f"RPC server {good}"].status.value == "ok"
    for address, said in ((mute, "says nothing"), (closed, "cannot be reached")):
        finding = found[f"RPC server {address}"]
        assert finding.status.value == "problem" and said in finding.fact and finding.remedy
    assert list(doctor.check_rpc([])) == []


def test_the_command_line_has_servers_where_models_answer(tmp_path: Path, files: tuple[Path, Path]) -> None:
    def typed(*words: str) -> Any:
        return CliRunner().invoke(command, list(words))

    refused = typed("chat", "-m", str(files[0]), "--rpc", "box", "-p", "hi")
    assert refused.exit_code == 2 and "--rpc is 'box', which is not HOST:PORT" in refused.output
    refused = typed("chat", "-m", str(files[0]), "--draft-rpc", "box:99999", "-p", "hi")
    assert refused.exit_code == 2 and "--draft-rpc is 'box:99999'" in refused.output
    refused = typed("serve", "-m", str(files[0]), "--rpc", "box:1", "--library", "ik")
    assert refused.exit_code == 2 and "only llama.cpp computes with RPC servers" in refused.output
    assert typed("doctor", "--rpc", "box").exit_code == 2
    for name in ("bench", "audit", "calibrate", "estimate"):
        refused = typed(name, "-m", str(files[0]), "--rpc", "box:1")
        assert refused.exit_code == 2 and "No such option" in refused.output


def test_an_error_goes_from_process_to_process_whole() -> None:
    import pickle

    error = RpcError("It is lost.", "Start it.", command="Type it.", addresses=["a:1"], code=-6)
    same = pickle.loads(pickle.dumps(error))
    assert isinstance(same, LocalspecError) and str(same) == str(error)
    assert (same.command, same.data, same.code) == ("Type it.", error.data, -6)
