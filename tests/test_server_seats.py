"""A server that answers several requests at a time: seats, what waits for them, and who comes first."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from localspec import LLM

from .serverkit import NO_TLS, SECONDS, Gate, ready, running, wait_until
from .tinygguf import write_llama

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("tiny") / "target.gguf", seed=1, n_ctx_train=8192)


def body(text="hello there", **options):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8} | options


def load(file, **options):
    return LLM.from_files(file, **{"n_ctx": 1024, "threads": 1, "draft_tokens": "off"} | options)


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.open()


@pytest.fixture(scope="module")
def two(file):
    with running(lambda: load(file, parallel=2, library="llama", cache_type_v="bf16")) as started:
        yield ready(started)


def test_requests_at_a_time_are_answered_as_alone(two):
    texts = [letter * 40 for letter in "abcdef"]
    alone = [two.post(CHAT, body(text)).json()["choices"] for text in texts]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda text: two.post(CHAT, body(text)).json()["choices"], texts))
    assert found == alone


def test_choices_share_their_prompt_and_stand_in_their_order(two):
    before = two.service.metrics.totals["cached_tokens"]
    answer = two.post(CHAT, body("abc" * 60, n=3, seed=1, temperature=0.9)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in answer["choices"]}) > 1
    assert two.service.metrics.totals["cached_tokens"] - before > 2 * 100
    again = two.post(CHAT, body("abc" * 60, n=3, seed=1, temperature=0.9)).json()
    assert again["choices"] == answer["choices"]


def test_a_stream_of_several_choices_brings_all_of_each(two):
    whole = two.post(CHAT, body(n=3, seed=2)).json()["choices"]
    texts = {}
    client = two.client()
    for chunk in client.chat.completions.create(model="tiny", n=3, seed=2, stream=True, **body()):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert texts == {choice["index"]: choice["message"]["content"] for choice in whole}


def test_both_seats_run_the_third_waits_and_the_lowest_priority_comes_first(file, gate):
    finished = []
    settings = {"queue": 2, "answering": {"logits_processors": [gate]}}
    with running(lambda: load(file, parallel=2), **settings) as server:
        ready(server)
        gate.shut()

        def ask(name, **options):
            answer = server.post(CHAT, body(**options))
            finished.append(name)
            return answer.status_code

        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(ask, "first"), pool.submit(ask, "second", max_tokens=400, ignore_eos=True)]
            wait_until(lambda: server.service.num_running == 2)
            asked.append(pool.submit(ask, "patient", priority=5, max_tokens=1))
            wait_until(lambda: server.service.waiting_or_running == 3)
            asked.append(pool.submit(ask, "urgent", priority=-1, max_tokens=1))
            wait_until(lambda: server.service.waiting_or_running == 4)
            metrics = server.get("/metrics").text
            assert "localspec_requests_running 2" in metrics and "localspec_requests_waiting 2" in metrics
            assert 'localspec_seat_busy{seat="1"}' in metrics and "wait for a seat" in metrics
            assert server.post(CHAT, body()).status_code == 429
            gate.open()
            assert [one.result() for one in asked] == [200] * 4
    assert finished.index("urgent") < finished.index("patient")


def test_a_client_that_leaves_frees_its_seat_alone(two):
    kept = []
    thread = threading.Thread(
        target=lambda: kept.append(two.post(CHAT, body("abc" * 20, max_tokens=300, ignore_eos=True)).json())
    )
    thread.start()
    with httpx.stream(
        "POST",
        two.url + CHAT,
        json=body(max_tokens=900, ignore_eos=True, stream=True),
        timeout=SECONDS,
        verify=NO_TLS,
    ) as answer:
        next(answer.iter_lines())
    thread.join()
    assert kept[0]["usage"]["completion_tokens"] == 300
    wait_until(lambda: two.service.num_running == 0)
    assert two.post(CHAT, body()).status_code == 200


def test_a_deadline_ends_its_own_answer(file):
    with running(lambda: load(file, parallel=2), timeout=2.0) as server:
        ready(server)
        with ThreadPoolExecutor(2) as pool:
            late = pool.submit(server.post, CHAT, body(max_tokens=1000, ignore_eos=True, temperature=0.0))
            time.sleep(0.1)
            assert server.post(CHAT, body()).status_code == 200
            assert late.result().status_code in (200, 408, 504)


def test_a_deadline_that_passes_in_the_queue_says_that_the_request_only_waited(file, gate):
    settings = {"timeout": 1.0, "answering": {"logits_processors": [gate]}}
    with running(lambda: load(file, parallel=2), **settings) as server, ThreadPoolExecutor(2) as pool:
        ready(server)
        gate.shut()
        answered = [pool.submit(server.post, CHAT, body()) for _ in range(2)]
        wait_until(lambda: server.service.num_running == 2)
        waited = server.post(CHAT, body())
        gate.open()
        found = [answer.result() for answer in answered] + [waited]
    assert [answer.status_code for answer in found] == [504] * 3
    messages = [answer.json()["error"]["message"] for answer in found]
    assert "Ask for fewer tokens" in messages[0] and "Ask for fewer tokens" in messages[1]
    assert messages[2].startswith("The request waited 1 seconds")
