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

from .serverkit import NO_TLS, QUESTION, SECONDS, ready, running
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
        facts = {"n_prompt_tokens", "n_ctx"} if error["code"] == "context_length_exceeded" else set()
        assert set(error) == {"message", "type", "param", "code"} | facts
        assert error["message"]
        assert error["param"] is None or isinstance(error["param"], str)


def send(server, path: str, content: bytes, **headers: str) -> httpx.Response:
    return httpx.post(server.url + path, content=content, headers=headers, timeout=SECONDS, verify=NO_TLS)


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
    with httpx.Client(timeout=SECONDS, verify=NO_TLS) as client:
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
    with httpx.Client(timeout=SECONDS, verify=NO_TLS) as client:
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


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        (TEXT, {"prompt": [[1, 2], "Hi"]}, "prompt[1]", "'Hi'. It must be a valid array"),
        (TEXT, {"prompt": ["Hi", [1, 2]]}, "prompt[1]", "[1, 2]. It must be a valid string"),
        (TEXT, {"prompt": [1, 2, "a"]}, "prompt[2]", "'a'. It must be a valid integer"),
        (TEXT, {"prompt": [1, [2]]}, "prompt[1]", "[2]. It must be a valid integer"),
        (TEXT, {"prompt": [[1], [2, "a"]]}, "prompt[1][1]", "'a'. It must be a valid integer"),
        (TEXT, {"prompt": [None]}, "prompt[0]", "None. It must be a valid string or a valid integer or a valid array"),
        (TEXT, {"prompt": {}}, "prompt", "{}. It must be a valid string or a valid array"),
        (TEXT, {"prompt": 3}, "prompt", "3. It must be a valid string or a valid array"),
        (CHAT, {"messages": "x"}, "messages",
         """'x'. It must be a valid array, such as [{"role": "user", "content": "..."}]."""),
        (CHAT, {"messages": [QUESTION[0], 7]}, "messages[1]",
         """7. It must be an object, such as {"role": "user", "content": "..."}."""),
        (CHAT, {"stop": ["a", 1]}, "stop[1]", "1. It must be a valid string"),
        (CHAT, {"logit_bias": [[[], 1]]}, "logit_bias[0][0]", "[]. It must be"),
        (CHAT, {"logit_bias": {"5": "a"}}, "logit_bias.5", "'a'. It must be a valid number"),
        (CHAT, {"logit_bias": 3}, "logit_bias", "3. It must be an object or a valid array"),
        (CHAT, {"messages": [QUESTION[0], {"role": "user", "content": [{"type": "text"}, 7]}]},
         "messages[1].content[1]", "7. It must be an object"),
        (CHAT, {"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0].type", "missing"),
        (CHAT, {"messages": [{"content": "a"}]}, "messages[0].role", "missing"),
        (RESPONSES, {"input": ["a"]}, "input[0]", "'a'. It must be an object"),
    ],
)  # fmt: skip
def test_of_several_forms_the_one_that_was_meant_is_explained(server, path, fields, param, said):
    error = server.post(path, GOOD[path] | fields).json()["error"]
    assert error["param"] == param
    assert said in error["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (TEXT, {"prompt": "ab\ud83d"}, "prompt"),
        (TEXT, {"prompt": ["a", "\udc00"]}, "prompt[1]"),
        (TEXT, {"stop": "\udfff"}, "stop"),
        (CHAT, {"stop": ["a", "\ud800b"]}, "stop[1]"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800\ud800"}]}]},
         "messages[0].content[0].text"),
        (CHAT, {"grammar": "root ::= \"\udc00\""}, "grammar"),
        (CHAT, {"json_schema": {"properties": {"\udc00": {}}}}, "json_schema.properties"),
        (RESPONSES, {"input": "\ud800"}, "input"),
        (RESPONSES, {"instructions": "\ud800"}, "instructions"),
        ("/tokenize", {"content": "\ud800"}, "content"),
    ],
)  # fmt: skip
def test_half_a_surrogate_pair_is_json_and_named(server, path, fields, param):
    data = json.dumps(GOOD[path] | fields).encode()
    error = send(server, path, data).json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(f"{param} holds half a surrogate pair (U+D")
    assert "is not JSON" in send(server, path, data[:-1]).json()["error"]["message"]


def test_a_whole_pair_is_a_character(server):
    assert send(
        server, TEXT, b'{"prompt": "\\ud83d\\ude00", "stop": "\\ud83d\\ude00", "max_tokens": 1}'
    ).is_success


RANGES = {
    "temperature": ([0, -0.0, 1, 2, 2.0], [-0.1, 2.001, 2.5, 3, 1e308]),
    "top_p": ([0, 0.5, 1], [-0.1, 1.1]),
    "frequency_penalty": ([-2, 0, 2], [-2.1, 2.1, 3, -100]),
    "presence_penalty": ([-2, 0, 2], [-2.1, 2.1, 3, 100]),
    "max_tokens": ([1, 2], [0, -2]),
    "n_predict": ([1, 0], [-2]),
    "n": ([1, 2], [0, -1, 129]),
    "stop": ([[], "a", ["a"] * 64], [["a"] * 65, [""], ""]),
    "logit_bias": (
        [{"5": 100}, {"5": -100}, [[5, 1000]], [[5, False]], [["ab", -5]], [["ab", False]]],
        [{"5": 101}, {"5": -1000}, {"a": 1}, [[5]], [[5, 1, 2]], [[5, "a"]], [[5, True]], [["a\0", 1]]],
    ),
}
OWN_RANGES = {
    CHAT: {
        "max_completion_tokens": ([1, 2], [0, -2]),
        "top_logprobs": ([0, 20], [-1, 21]),
        "modalities": ([[], ["text"]], [["text", "audio"], ["audio"], ["image"]]),
        "audio": ([None], [{"voice": "alloy", "format": "wav"}]),
        "functions": ([[]], [[{"name": "f", "parameters": {}}]]),
    },
    TEXT: {"logprobs": ([0, 5], [-1, 6]), "best_of": ([1], [2])},
}


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path in OWN_RANGES for name in (*RANGES, *OWN_RANGES[path])]
)
def test_what_openai_refuses_is_refused_and_named(server, path, name):
    right, wrong = OWN_RANGES[path].get(name) or RANGES[name]
    body = {
        field: value for field, value in GOOD[path].items() if name != "n_predict" or field != "max_tokens"
    }
    body |= {"logprobs": True} if name == "top_logprobs" else {}
    for value in right:
        answer = server.post(path, body | {name: value})
        assert answer.status_code == 200, (value, answer.text)
    for value in wrong:
        answer = server.post(path, body | {name: value})
        assert answer.status_code == 400, value
        assert answer.json()["error"]["param"].split("[")[0] == name, value


@pytest.mark.parametrize("name", ["max_tokens", "n_predict", "max_completion_tokens"])
def test_an_answer_without_a_limit_may_be_asked_for_as_llama_cpp_does(server, name):
    """Until the end, which a stop string brings here."""
    first = server.post(CHAT, GOOD[CHAT] | {"max_tokens": 1}).json()["choices"][0]["message"]["content"]
    body = {"messages": QUESTION, "stop": first, name: -1}
    assert server.post(CHAT, body).json()["choices"][0]["finish_reason"] == "stop"


def test_a_response_has_a_length_too(server):
    for value, status in ((1, 200), (0, 400), (-2, 400)):
        answer = server.post(RESPONSES, GOOD[RESPONSES] | {"max_output_tokens": value})
        assert answer.status_code == status
        assert status == 200 or answer.json()["error"]["message"].startswith(f"max_output_tokens is {value}.")


def test_a_text_stands_for_all_its_tokens_in_a_bias(server):
    tokens = server.post("/tokenize", {"content": "the\u00e9"}).json()["tokens"]
    assert len(tokens) > 2
    body = {"prompt": "abc", "max_tokens": 8, "temperature": 0, "logprobs": 0}

    def chosen(bias):
        answer = server.post(TEXT, body | {"logit_bias": bias}).json()
        return answer["choices"][0]["logprobs"]["tokens"]

    expected = chosen([[token, 30] for token in tokens])
    assert chosen([["the\u00e9", 30]]) == expected != chosen([])


def test_a_prompt_that_is_too_long_says_its_length_and_the_contexts(server):
    ids = [5] * 300
    long = {TEXT: {"prompt": ids}, CHAT: {"messages": [QUESTION[0] | {"content": "x" * 900}]},
            RESPONSES: {"input": "x" * 900}}  # fmt: skip
    answers = [server.post(path, body) for path, body in long.items()]
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["n_ctx"] == 256 < error["n_prompt_tokens"]
        assert str(error["n_prompt_tokens"]) in error["message"]
    assert answers[0].json()["error"]["n_prompt_tokens"] == 300


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
