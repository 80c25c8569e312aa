"""The server's life: loading, queue, deadline, clients that leave, stopping. Answers wait at a gate where need be."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import openai
import pytest

from localspec import LLM
from localspec.decoding.params import SamplingParams
from localspec.errors import LoadCancelled, ModelFileError
from localspec.server.app import create_app
from localspec.server.replies import EventStream
from localspec.server.settings import Settings
from localspec.system.load_watch import check_cancelled, current_watch, stage
from localspec.system.progress import Stage

from .serverkit import QUESTION, SECONDS, Gate, ready, running, wait_until
from .tinygguf import write_llama

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("tiny") / "target.gguf", seed=1, n_ctx_train=8192)


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.open()


def load(file, **options):
    return LLM.from_files(file, **{"n_ctx": 4096, "threads": 1, "draft_tokens": "off"} | options)


@pytest.fixture
def gated(file, gate):
    """One running request and one that may wait."""
    settings = {"queue": 1, "answering": {"logits_processors": [gate]}}
    with running(lambda: load(file), **settings) as started:
        yield ready(started)
        gate.open()


def body(**options):
    return {"messages": QUESTION, "max_tokens": 8} | options


def leave(server, share=1.0, path=CHAT, **options):
    """Ask, and hang up without reading the answer. share: of the body that is sent."""
    data = httpx.Request("POST", server.url + path, json=body(**options))
    sent = data.content[: round(len(data.content) * share)]
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in data.headers.items())]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + sent)
    return connection


def test_until_the_model_is_there_everything_but_the_lists_is_a_503(file):
    may_load = threading.Event()

    def slowly():
        may_load.wait(SECONDS)
        return load(file)

    with running(slowly) as server:
        try:
            for answer in (server.get("/health"), server.get("/props"), server.post(CHAT, body())):
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "loading"
                assert answer.headers["retry-after"]
            assert server.get("/v1/models").status_code == 200
            assert "localspec_model_loaded 0" in server.get("/metrics").text
        finally:
            may_load.set()
        ready(server)
        assert "localspec_model_loaded 1" in server.get("/metrics").text
        assert server.post(CHAT, body()).status_code == 200


@pytest.mark.parametrize("obeys", [True, False])
def test_a_stop_ends_a_load_and_is_no_fault(obeys):
    """The load is told to end, and waited for: what it may still bring is closed and not lost."""
    closed, errors = [], []
    begun = threading.Event()

    def slowly():
        begun.set()
        wait_until(lambda: current_watch().cancelled)
        if obeys:
            check_cancelled()
        return SimpleNamespace(parallel=1, close=lambda: closed.append(True))

    async def live() -> None:
        app = create_app(slowly, Settings(name="tiny"), errors.append)
        async with app.router.lifespan_context(app):
            await asyncio.to_thread(begun.wait, SECONDS)

    asyncio.run(live())
    assert closed == ([] if obeys else [True])
    assert [type(error) for error in errors] == ([LoadCancelled] if obeys else [])


def test_the_end_of_a_server_that_has_loaded_cancels_no_load():
    """It would set the flag that stops the passes of answers."""
    cancelled = []

    def quickly():
        watch = current_watch()
        return SimpleNamespace(parallel=1, close=lambda: cancelled.append(watch.cancelled))

    async def live() -> None:
        app = create_app(quickly, Settings(name="tiny"))
        async with app.router.lifespan_context(app), asyncio.timeout(SECONDS):
            while app.state.service._llm is None:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)

    asyncio.run(live())
    assert cancelled == [False]


def test_what_is_going_on_before_the_model_is_ready_is_said(file):
    """The stage that the load itself tells, whatever it is."""
    steps = [threading.Event() for _ in range(3)]

    def slowly():
        steps[0].wait(SECONDS)
        stage(Stage.READ, "reading the stars", 0.25, 0.5)
        steps[1].wait(SECONDS)
        stage(Stage.MEASURE, "measuring the moon", 0.805, 0.9)
        steps[2].wait(SECONDS)
        return load(file)

    with running(slowly) as server:
        try:
            for step, (kind, text, share) in zip(
                steps,
                [
                    ("start", "starting", 0),
                    ("read", "reading the stars", 0.25),
                    ("measure", "measuring the moon", 0.805),
                ],
                strict=True,
            ):
                wait_until(lambda text=text: text in server.get("/health").json()["error"]["message"])
                for answer in (server.get("/health"), server.get("/props"), server.post(CHAT, body())):
                    error = answer.json()["error"]
                    assert (answer.status_code, error["code"]) == (503, "loading")
                    assert (error["stage"], error["progress"]) == (kind, share)
                    assert error["message"] == f"The model is not ready yet: {text} ({round(100 * share)} %)."
                step.set()
        finally:
            for step in steps:
                step.set()
        ready(server)


def test_a_load_that_fails_is_told(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    with running(lambda: load(broken)) as server:
        wait_until(lambda: server.failures)
        assert isinstance(server.failures[0], ModelFileError)


def test_a_full_queue_is_a_429_and_health_answers_meanwhile(gated, gate):
    gate.shut()
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(gated.post, CHAT, body()) for _ in range(2)]
        wait_until(lambda: gate.reached.is_set() and gated.service.busy == 2)
        refused = gated.post(CHAT, body(stream=True))
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "queue_full"
        assert gated.get("/health").status_code == 200
        metrics = gated.get("/metrics").text
        assert "localspec_requests_running 1" in metrics
        assert "localspec_requests_waiting 1" in metrics
        with gated.client() as client, pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="tiny", messages=QUESTION)
        gate.open()
        assert [answer.result().status_code for answer in answers] == [200, 200]
    wait_until(lambda: gated.service.busy == 0)


def test_a_server_where_nothing_may_wait_says_so(file, gate):
    settings = {"queue": 0, "answering": {"logits_processors": [gate]}}
    with running(lambda: load(file), **settings) as server, ThreadPoolExecutor(1) as pool:
        ready(server)
        gate.shut()
        answer = pool.submit(server.post, CHAT, body())
        wait_until(gate.reached.is_set)
        refused = server.post(CHAT, body())
        gate.open()
        assert answer.result().status_code == 200
    assert refused.status_code == 429
    assert refused.json()["error"]["message"].startswith("As many requests are being answered")


def test_requests_are_answered_in_their_order(file, gate):
    order, names = [], ["1", "2", "3", "4"]

    def note(ids, logits):
        name = next(name for name in names if ord(name) in ids)  # the vocabulary begins with the bytes
        order.extend([name] if name not in order else [])
        return gate(ids, logits)

    with running(lambda: load(file), answering={"logits_processors": [note]}) as server:
        ready(server)
        gate.shut()
        with ThreadPoolExecutor(len(names)) as pool:
            asked = []
            for count, name in enumerate(names, 1):
                messages = [{"role": "user", "content": name}]
                asked.append(pool.submit(server.post, CHAT, body(messages=messages)))
                wait_until(lambda count=count: server.service.waiting_or_running == count)
            gate.open()
            assert [answer.result().status_code for answer in asked] == [200] * len(names)
    assert order == names


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_engine(gated, gate, stream):
    expected = gated.post(CHAT, body()).json()["choices"]
    gate.shut()
    connection = leave(gated, stream=stream, max_tokens=4000)
    wait_until(gate.reached.is_set)
    connection.close()
    gate.open()
    wait_until(lambda: gated.service.busy == 0)
    assert gated.post(CHAT, body()).json()["choices"] == expected


class Slow:
    """A logits processor that takes its time and counts, so that an answer which goes on by itself is seen."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, ids, logits):
        self.rows += 1
        time.sleep(0.01)
        return logits


@pytest.fixture
def slow(file):
    """A server whose whole answer would take 40 s, and what counts its rows."""
    counted = Slow()
    with running(lambda: load(file), queue=2, answering={"logits_processors": [counted]}) as started:
        yield ready(started), counted


ENDLESS = {"max_tokens": 4000, "ignore_eos": True}
FEW = 1000
"""Rows that may be computed until a machine with much to do has noticed that a client is gone."""


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_that_is_computed_ends_when_its_client_leaves(slow, path, stream):
    server, counted = slow
    given = {
        CHAT: {"messages": QUESTION},
        "/v1/completions": {"prompt": "abc"},
        "/v1/responses": {"input": "abc"},
    }
    asked = given[path] | ENDLESS | {"stream": stream, "n": 1 if path.endswith("responses") else 2}
    connection = leave(server, path=path, **asked)
    wait_until(lambda: counted.rows > 3)
    if stream:
        assert connection.recv(1000)
    connection.close()
    wait_until(lambda: server.service.busy == 0)
    assert counted.rows < FEW


def test_a_client_that_leaves_ends_no_other_answer(slow):
    server, counted = slow
    with ThreadPoolExecutor(1) as pool:
        mine = pool.submit(server.post, CHAT, body(max_tokens=100, ignore_eos=True))
        wait_until(lambda: counted.rows > 3)
        other = leave(server, **ENDLESS)
        wait_until(lambda: server.service.waiting_or_running == 2)
        other.close()
        answer = mine.result().json()
    assert answer["usage"]["completion_tokens"] == 100
    wait_until(lambda: server.service.busy == 0)
    assert counted.rows < FEW


def test_the_deadline_ends_the_answer_that_is_computed(file):
    counted = Slow()
    with running(lambda: load(file), timeout=0.5, answering={"logits_processors": [counted]}) as server:
        assert ready(server).post(CHAT, body(**ENDLESS)).status_code == 504
        wait_until(lambda: server.service.busy == 0)
        assert counted.rows < FEW


def test_the_end_of_the_grace_time_ends_the_answer_that_is_computed(file):
    counted = Slow()
    settings = {"grace": 0.1, "answering": {"logits_processors": [counted]}}
    with running(lambda: load(file), **settings) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ready(server).post, CHAT, body(**ENDLESS))
        wait_until(lambda: counted.rows > 3)
        server.server.stop()
        assert answer.result().json()["error"]["code"] == "stopping"
        wait_until(lambda: server.service.busy == 0)
        assert counted.rows < FEW


class Preparation:
    """Holds the preparation of requests: what renders the prompt."""

    def __init__(self, monkeypatch) -> None:
        self.reached, self.may_go_on = threading.Event(), threading.Event()
        render = LLM.render

        def held(llm, *arguments, **options):
            self.reached.set()
            self.may_go_on.wait(SECONDS)
            return render(llm, *arguments, **options)

        monkeypatch.setattr(LLM, "render", held)


@pytest.fixture
def preparation(monkeypatch):
    made = Preparation(monkeypatch)
    yield made
    made.may_go_on.set()


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_while_a_request_is_prepared_refuses_it(slow, preparation, stream):
    server, counted = slow
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, CHAT, body(stream=stream, **ENDLESS))
        assert preparation.reached.wait(SECONDS)
        assert (server.service.busy, server.service.waiting_or_running) == (1, 0)
        server.server.stop()
        wait_until(lambda: server.service.stopping)
        preparation.may_go_on.set()
        assert answer.result().status_code == 503
        assert answer.result().json()["error"]["code"] == "stopping"
    wait_until(lambda: server.service.busy == 0)
    assert counted.rows == 0


def test_a_client_that_leaves_while_its_request_is_prepared_frees_the_engine(slow, preparation):
    server, counted = slow
    connection = leave(server, **ENDLESS)
    assert preparation.reached.wait(SECONDS)
    connection.close()
    preparation.may_go_on.set()
    wait_until(lambda: server.service.busy == 0)
    assert counted.rows < FEW


def test_a_request_that_cannot_be_prepared_gives_its_place_back(slow):
    server, _ = slow
    for _ in range(5):
        assert server.post(CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]}).status_code == 400
    assert server.service.busy == 0
    assert server.post(CHAT, body()).status_code == 200


@pytest.mark.parametrize(
    "head", ["Content-Length: 1000", "Transfer-Encoding: chunked"], ids=["length", "chunked"]
)
def test_a_client_that_leaves_before_its_question_is_whole_is_no_fault(gated, head, caplog):
    host, port = gated.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        connection.sendall(b"1\r\n{\r\n" if "chunked" in head else b'{"messages": ')
        wait_until(lambda: gated.server.server_state.connections)
    wait_until(lambda: not gated.server.server_state.connections)
    assert gated.get("/health").status_code == 200
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_client_that_leaves_while_it_waits_gives_its_place_back(gated, gate):
    gate.shut()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(gated.post, CHAT, body())
        wait_until(gate.reached.is_set)
        connection = leave(gated)
        wait_until(lambda: gated.service.busy == 2)
        connection.close()
        wait_until(lambda: gated.service.busy == 1)
        gate.open()
        assert answer.result().status_code == 200


def test_a_client_that_leaves_in_prefill_frees_the_engine(file):
    with running(lambda: load(file)) as server:
        expected = ready(server).post(CHAT, body()).json()["choices"]
        question = [{"role": "user", "content": "x " * 1900}]
        connection = leave(server, messages=question, max_tokens=4000)
        wait_until(lambda: server.service.busy)
        connection.close()
        wait_until(lambda: server.service.busy == 0)
        assert server.post(CHAT, body()).json()["choices"] == expected


def test_a_client_that_leaves_in_its_own_request_is_no_fault_of_the_servers(gated, caplog):
    leave(gated, share=0.5).close()
    wait_until(lambda: 'completions",status="499"' in gated.get("/metrics").text)
    assert caplog.text == ""
    assert gated.post(CHAT, body()).status_code == 200


def test_a_stop_does_not_wait_for_the_rest_of_a_request(gated):
    with leave(gated, share=0.5) as connection:
        connection.settimeout(SECONDS)
        wait_until(lambda: gated.service.receiving)
        gated.server.stop()
        assert b'"code":"stopping"' in connection.makefile("rb").read()


def test_a_stream_whose_texts_are_all_ready_lets_others_go_on():
    order = []

    async def texts():
        for _ in range(5):
            yield "text"

    async def send(message):
        order.append(message["type"])

    async def other():
        for _ in range(5):
            order.append("other")
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(EventStream(texts())({}, None, send), other())

    asyncio.run(both())
    assert "other other" not in " ".join(order)


def test_a_stream_that_is_closed_early_frees_the_engine(gated):
    with gated.client() as client:
        stream = client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=4000, stream=True)
        next(stream)
        stream.close()
    wait_until(lambda: gated.service.busy == 0)


def test_the_deadline_is_a_504_before_the_first_chunk(file, gate):
    settings = {"timeout": 0.2, "answering": {"logits_processors": [gate]}}
    with running(lambda: load(file), **settings) as server:
        ready(server)
        gate.shut()
        for stream in (False, True):
            answer = server.post(CHAT, body(stream=stream))
            assert answer.status_code == 504
            assert answer.json()["error"]["code"] == "timeout"
        gate.open()
        wait_until(lambda: server.post(CHAT, body()).status_code == 200)


def test_the_deadline_after_the_first_chunk_is_an_event(file, gate):
    settings = {"timeout": 5.0, "answering": {"logits_processors": [gate]}}
    with running(lambda: load(file), **settings) as server, ready(server).client() as client:
        stream = client.chat.completions.create(
            model="tiny", messages=QUESTION, max_tokens=4000, stream=True, logprobs=True
        )
        next(stream)
        gate.shut()
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "timeout"
        gate.open()


def test_a_stop_lets_answers_finish_in_the_grace_time(file, gate):
    settings = {"grace": SECONDS, "answering": {"logits_processors": [gate]}}
    with running(lambda: load(file), **settings) as server, ThreadPoolExecutor(2) as pool:
        ready(server)
        gate.shut()
        running_one = pool.submit(server.post, CHAT, body())
        wait_until(gate.reached.is_set)
        waiting_one = pool.submit(server.post, CHAT, body())
        wait_until(lambda: server.service.busy == 2)
        server.server.stop()
        assert waiting_one.result().status_code == 503
        gate.open()
        answer = running_one.result()
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 8


def test_a_stop_ends_an_answer_that_does_not_finish(file, gate):
    settings = {"grace": 0.1, "answering": {"logits_processors": [gate]}}
    with running(lambda: load(file), **settings) as server, ready(server).client() as client:
        stream = client.chat.completions.create(
            model="tiny", messages=QUESTION, max_tokens=4000, stream=True, logprobs=True
        )
        next(stream)
        gate.shut()
        wait_until(gate.reached.is_set)
        server.server.stop()
        wait_until(lambda: server.service.stopping)
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "stopping"
        gate.open()


def test_an_answer_that_fails_is_a_500_and_the_next_one_is_right(file, gate, caplog):
    def fail(ids, logits):
        if not gate.passing:
            raise RuntimeError("the processor broke")
        return logits

    with running(lambda: load(file), answering={"logits_processors": [fail]}) as server:
        expected = ready(server).post(CHAT, body()).json()["choices"]
        gate.shut()
        answer = server.post(CHAT, body())
        assert answer.status_code == 500
        assert "the processor broke" in answer.json()["error"]["message"]
        gate.open()
        assert server.post(CHAT, body()).json()["choices"] == expected
    assert "the processor broke" in caplog.text


def test_an_answer_cancelled_from_inside_does_not_pass_for_whole(gated, gate):
    gate.shut()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(gated.post, CHAT, body())
        wait_until(gate.reached.is_set)
        gated.service.llm.cancel()
        gate.open()
        assert answer.result().json()["error"]["code"] == "cancelled"


def test_defaults_of_the_server_hold_where_a_request_is_silent(file):
    with running(lambda: load(file), params=SamplingParams(temperature=0, max_tokens=3)) as server:
        usage = ready(server).post(CHAT, {"messages": QUESTION}).json()["usage"]
        assert usage["completion_tokens"] == 3
        assert server.post(CHAT, body()).json()["usage"]["completion_tokens"] == 8
        shorter = server.post("/v1/completions", {"prompt": "abc", "n_predict": 2}).json()
        assert shorter["usage"]["completion_tokens"] == 2
