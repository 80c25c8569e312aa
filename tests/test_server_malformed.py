"""Requests that are wrong in every way: none of them crashes the server, and none is a fault of the server's."""

from __future__ import annotations

import json
import random

import httpx
import pytest
from pydantic import ValidationError

from localspec import LLM
from localspec.llama.vocabulary import LONGEST_TEXT
from localspec.server.response_schemas import ResponseRequest
from localspec.server.schemas import ChatRequest, CompletionRequest, DetokenizeRequest

from .serverkit import QUESTION, SECONDS, ready, running
from .tinygguf import write_llama

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
GOOD = {
    CHAT: {"messages": QUESTION, "max_tokens": 2},
    TEXT: {"prompt": "abc", "max_tokens": 2},
    RESPONSES: {"input": "abc", "max_output_tokens": 2},
    "/tokenize": {"content": "abc"},
    "/detokenize": {"tokens": [1, 2]},
}
ODD = (
    None, True, False, 0, -1, 1, 3, 1.5, -0.0, 1e308, 2**63, 2**64, -(2**70), 10**400, "", "a", "\0", "null", "auto",
    "\u00e9\U0001f600", "x" * 3000, [], [[]], [None], [1], [-1], ["a"], [[1, 2]], [[1, False]], [1.5], {}, {"a": 1},
    {"type": "x"}, {"type": "text"}, {"type": "json_object"}, {"type": "content", "content": []},
    {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}, {"1": 1e9}, {"1": "a"}, {"-1": 0},
    [{"role": "user"}], [{"role": "user", "content": [{"type": "text"}]}], [{"role": "tool", "content": "a"}],
    [{"role": "assistant", "content": None, "tool_calls": [{}]}],
)  # fmt: skip
SEED = 6
COUNT = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    file = write_llama(tmp_path_factory.mktemp("tiny") / "target.gguf", seed=1)
    with running(
        lambda: LLM.from_files(file, n_ctx=256, threads=1, draft_tokens=2), max_body=200_000
    ) as started:
        yield ready(started)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory):
    """One that reads bodies of the usual size."""
    file = write_llama(tmp_path_factory.mktemp("roomy") / "target.gguf", seed=1)
    with running(lambda: LLM.from_files(file, n_ctx=256, threads=1, draft_tokens="off")) as started:
        yield ready(started)


def allowed(answer: httpx.Response, *about: object) -> None:
    """Answered, or refused with OpenAI's error object."""
    assert answer.status_code in (200, 400, 404, 413), (answer.status_code, answer.text, about)
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["param"] is None or isinstance(error["param"], str)


def send(server, path: str, content: bytes, **headers: str) -> httpx.Response:
    return httpx.post(server.url + path, content=content, headers=headers, timeout=SECONDS)


def fields(description: dict, path: str) -> list[str]:
    """The fields of a body."""
    reference = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = description["components"]["schemas"][reference["$ref"].rsplit("/", 1)[1]]
    return sorted(schema["properties"])


def generated(description: dict, rng: random.Random) -> tuple[str, dict]:
    """A good body in which up to three fields of the server's own description got values of any kind."""
    path = rng.choice(list(GOOD))
    body, names = dict(GOOD[path]), fields(description, path)
    for name in rng.sample(names, min(rng.randint(1, 3), len(names))):
        body[name] = rng.choice(ODD)
    if rng.random() < 0.1:
        del body[rng.choice(sorted(body))]
    if path in (CHAT, TEXT, RESPONSES):  # what is right by chance must not take long
        body.setdefault("max_tokens", 2)
    return path, body


def test_no_generated_request_is_the_servers_fault(server):
    description, rng = server.get("/openapi.json").json(), random.Random(SEED)
    statuses = []
    with httpx.Client(timeout=SECONDS) as client:
        for _ in range(COUNT):
            path, body = generated(description, rng)
            answer = client.post(server.url + path, json=body)
            allowed(answer, path, body)
            statuses.append(answer.status_code)
    assert statuses.count(400) > COUNT / 3
    assert statuses.count(200) > COUNT / 30
    works(server)


EXTREME = (-1, 0, 1.5, -0.0, 1e308, 2**31, 2**63, 2**64, -(2**70), 10**400, True, "1", [], {})


def test_no_extreme_value_of_one_field_is_the_servers_fault(server):
    description = server.get("/openapi.json").json()
    with httpx.Client(timeout=SECONDS) as client:
        for path, good in GOOD.items():
            for name in fields(description, path):
                for value in EXTREME:
                    allowed(client.post(server.url + path, json=good | {name: value}), name, value)
    works(server)


FREE = {
    CHAT: [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 7777}}}]},
        {"tool_choice": {"type": "function", "function": {"name": "f"}, "more": 7777}},
        {"chat_template_kwargs": {"a": [{"b": 7777}]}},
        {"json_schema": {"maximum": 7777}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"maximum": 7777}}}},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}, "more": 7777}]}]},
    ],
    RESPONSES: [
        {"tools": [{"type": "function", "name": "f", "parameters": {"maximum": 7777}}]},
        {
            "tools": [{"type": "function", "name": "f"}],
            "tool_choice": {"type": "function", "name": "f", "a": 7777},
        },
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"maximum": 7777}}}},
        {"input": [{"role": "user", "content": "a", "more": 7777}]},
    ],
}
"""Bodies with places for any JSON, in which 7777 is a number."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_what_is_no_number_in_json_is_refused_wherever_it_stands(server, number, stream):
    """Some of it comes back in the answer, which could then not be written."""
    for path, bodies in FREE.items():
        for fields in bodies:
            data = json.dumps(GOOD[path] | fields | {"stream": stream}).replace("7777", number)
            answer = send(server, path, data.encode())
            assert answer.status_code == 400, (path, fields)
            named = answer.json()["error"]["param"]
            assert named.split("[")[0].split(".")[0] in fields


@pytest.mark.parametrize(
    ("path", "param", "body"),
    [
        (CHAT, "messages", lambda text: {"messages": [{"role": "user", "content": text}]}),
        (CHAT, "prediction", lambda text: {"messages": QUESTION, "prediction": {"content": text}}),
        (TEXT, "prompt", lambda text: {"prompt": text}),
        (RESPONSES, "input", lambda text: {"input": text}),
        ("/tokenize", "content", lambda text: {"content": text}),
    ],
)
def test_a_text_that_no_tokenizer_takes_is_named(roomy, path, param, body):
    answer = roomy.post(path, body("x" * (LONGEST_TEXT + 1)))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


MANY = 1000
LONG = {
    ChatRequest: [
        {"messages": [1] * MANY},
        {"messages": [{"role": "user", "content": [1] * MANY}]},
        {"messages": [], "stop": [1] * MANY},
        {"messages": [], "tools": [1] * MANY},
        {"messages": [], "logit_bias": [1] * MANY},
        {"messages": [], "logit_bias": {str(number): "a" for number in range(MANY)}},
    ],
    CompletionRequest: [{"prompt": [1] * MANY + ["a"]}, {"prompt": [[1]] * MANY + ["a"]}],
    ResponseRequest: [
        {"input": [1] * MANY},
        {"input": "a", "metadata": {str(number): number for number in range(MANY)}},
        {"input": "a", "include": [1] * MANY},
    ],
    DetokenizeRequest: [{"tokens": ["a"] * MANY}],
}


@pytest.mark.parametrize("kind", LONG)
def test_a_long_list_is_refused_for_its_first_fault(kind):
    """All faults of four megabytes took minutes to collect, in which no other request was answered."""
    for body in LONG[kind]:
        with pytest.raises(ValidationError) as caught:
            kind.model_validate_json(json.dumps(body))
        assert caught.value.error_count() < 10, list(body)


BY_HAND = {
    "empty": b"",
    "no json": b"hello",
    "half": b'{"messages": [',
    "two values": b"{} {}",
    "a list": b"[]",
    "a text": b'"a"',
    "null": b"null",
    "a number": b"1e400",
    "not utf-8": b'{"prompt": "\xff\xfe"}',
    "utf-16": json.dumps(GOOD[CHAT]).encode("utf-16"),
    "a mark in front": b"\xef\xbb\xbf" + json.dumps(GOOD[CHAT]).encode(),
    "half a pair": b'{"prompt": "\\ud800", "messages": [{"role": "user", "content": "\\udc00"}]}',
    "half a pair as model": b'{"model": "\\ud800", "prompt": "a", "messages": [{"role":"user","content":"a"}]}',
    "infinite": b'{"prompt": "a", "temperature": Infinity, "messages": [{"role":"user","content":"a"}]}',
    "no number": b'{"prompt": "a", "top_p": NaN, "messages": [{"role":"user","content":"a"}]}',
    "deep": b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "a deep schema": b'{"max_tokens":2,"messages":[{"role":"user","content":"a"}],"prompt":"a","json_schema":'
    + b'{"items":' * 3000 + b"{}" + b"}" * 3001,
    "a long number": b'{"prompt": "a", "seed": ' + b"9" * 50_000 + b"}",
    "a long name": b'{"' + b"a" * 100_000 + b'": 1}',
    "twice": b'{"prompt": "a", "prompt": 3, "max_tokens": 1}',
    "too large": b'{"prompt": "' + b"a" * 300_000 + b'"}',
    "binary": bytes(range(256)),
}  # fmt: skip


@pytest.mark.parametrize("data", BY_HAND.values(), ids=BY_HAND)
def test_no_request_by_hand_is_the_servers_fault(server, data):
    for path in GOOD:
        allowed(send(server, path, data))
    works(server)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": ""},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Type": "multipart/form-data"},
        {"Accept": "nothing/at-all"},
        {"Content-Encoding": "gzip"},
        {"Authorization": b"\xff" * 100},
    ],
)
def test_odd_headers_change_nothing(server, headers):
    allowed(send(server, CHAT, json.dumps(GOOD[CHAT]).encode(), **headers))
    works(server)


def works(server) -> None:
    """The next request is right."""
    answer = server.post(CHAT, GOOD[CHAT])
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 2
