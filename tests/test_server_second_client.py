"""A client of another make, huggingface_hub's, unchanged: it has its own words for some fields, its own reader of
streams and its own errors."""

from __future__ import annotations

import asyncio
import json

import jsonschema
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient, close_session
from huggingface_hub.errors import BadRequestError, HfHubHTTPError, InferenceTimeoutError, UnknownError

from localspec import LLM

from .scripted_llm import QWEN
from .serverkit import QUESTION, SECONDS, Gate, Running, ready, running
from .tinygguf import write_pair

SIZES = {"n_ctx": 1024, "threads": 1, "draft_tokens": 3, "cache_type_v": "bf16"}
KEY = "hf_of_this_server"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "greet", "description": "It.", "parameters": PERSON}}]


@pytest.fixture(scope="module", autouse=True)
def _connections():
    """The client keeps them in one pool for the whole process."""
    close_session()
    yield
    close_session()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("tiny"), template=QWEN, n_ctx_train=1024, ends=True)


@pytest.fixture(scope="module")
def server(files):
    with running(lambda: LLM.from_files(*files, **SIZES), api_key=KEY) as started:
        yield ready(started)


def client_of(server: Running, **options) -> InferenceClient:
    return InferenceClient(**{"base_url": f"{server.url}/v1", "api_key": KEY, "timeout": SECONDS} | options)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def chat(client, **options):
    return client.chat_completion(**{"messages": QUESTION, "model": "tiny", "max_tokens": 40} | options)


def text_of(chunks) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_a_chat_is_what_the_engine_answers_alone(client, files):
    with LLM.from_files(*files, **SIZES) as alone:
        expected = alone.generate(QUESTION, temperature=0, max_tokens=40)
    answer = chat(client)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason == "stop"
    assert answer.usage.prompt_tokens == expected.stats.prompt_tokens
    assert answer.usage.completion_tokens == len(expected.ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(expected.ids)
    assert answer.model == "tiny"
    assert answer.timings["draft_n"] > 0, "fields that the client does not know reach the caller"


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_every_form_of_the_address(server, client, path):
    other = client_of(server, base_url=server.url + path)
    assert chat(other, max_tokens=3).choices == chat(client, max_tokens=3).choices


def test_openais_names_of_the_client(client):
    answer = client.chat.completions.create(messages=QUESTION, model="tiny", max_tokens=5)
    assert answer.choices == chat(client, max_tokens=5).choices


def test_a_stream_gives_the_same_text_and_its_usage_last(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chat(client, stream=True, max_tokens=3))


def test_a_seed_repeats_and_choices_differ(client):
    options = {"seed": 7, "temperature": 1.0, "n": 2}
    first, second = chat(client, **options), chat(client, **options)
    plain = chat(client, **options, extra_body={"draft_tokens": "off"})
    assert plain.timings["draft_n"] == 0
    texts = [[choice.message.content for choice in answer.choices] for answer in (first, second, plain)]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0][0] != texts[0][1]
    assert chat(client, **options | {"seed": 8}).choices[0].message.content != texts[0][0]


def test_a_stop_string_ends_the_answer_and_is_not_shown(client):
    text = chat(client).choices[0].message.content
    stop = text[8:10]
    answer = chat(client, stop=[stop])
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_logprobs(client):
    content = chat(client, logprobs=True, top_logprobs=3, max_tokens=12).choices[0].logprobs.content
    assert len(content) == 12
    for item in content:
        assert len(item.top_logprobs) == 3
        assert item.logprob == pytest.approx(item.top_logprobs[0].logprob), "greedy takes the likeliest"
    streamed = [
        item
        for chunk in chat(client, logprobs=True, top_logprobs=3, max_tokens=12, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for item in choice.logprobs.content
    ]
    assert [item.token for item in streamed] == [item.token for item in content]


def test_a_schema_holds_though_this_client_sends_it_by_another_name(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    answer = chat(client, response_format=form, max_tokens=200)
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), PERSON)
    streamed = chat(client, response_format=form, max_tokens=200, stream=True)
    assert text_of(streamed) == answer.choices[0].message.content


def test_a_schema_that_is_none_is_refused_by_the_clients_own_error(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": {"type": 3}}}
    with pytest.raises(BadRequestError) as caught:
        chat(client, response_format=form)
    assert caught.value.response.json()["error"]["param"] == "response_format"


@pytest.mark.parametrize("choice", ["required", {"function": {"name": "greet"}, "type": "function"}])
def test_a_forced_call_has_arguments_that_hold(client, choice):
    options = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 300}
    (whole,) = chat(client, **options).choices
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    assert (call.type, call.function.name) == ("function", "greet")
    jsonschema.validate(json.loads(call.function.arguments), PERSON)
    pieces = [
        piece
        for chunk in chat(client, **options, stream=True)
        for piece in chunk.choices[0].delta.tool_calls or []
    ]
    assert pieces[0].function.name == "greet"
    assert "".join(piece.function.arguments for piece in pieces) == call.function.arguments


def test_the_answer_of_a_tool_goes_back(client):
    first = chat(client, tools=TOOLS, tool_choice="required", max_tokens=300).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "Hello."}
    with_result = [*QUESTION, {"role": "assistant", "tool_calls": first.tool_calls}, result]
    longer = chat(client, messages=with_result, tools=TOOLS, tool_choice="none", max_tokens=3)
    assert longer.usage.prompt_tokens > chat(client, max_tokens=3).usage.prompt_tokens
    assert longer.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"temperature": -1}, "temperature", "temperature is -1"),
        ({"max_tokens": -5}, "max_tokens", "max_tokens is -5"),
        ({"messages": []}, "messages", "messages"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_the_clients_own_error_with_our_sentence(client, stream, options, param, words):
    with pytest.raises(BadRequestError, match=words) as caught:
        chat(client, stream=stream, **options)
    assert caught.value.response.status_code == 400
    assert caught.value.response.json()["error"]["param"] == param


@pytest.mark.parametrize("model", ["other", None])
def test_another_model_is_not_found(client, model):
    """Without a name this client sends one of its own, which is no model's."""
    with pytest.raises(HfHubHTTPError, match=r"model.*tiny") as caught:
        chat(client, model=model)
    assert caught.value.response.status_code == 404
    assert caught.value.response.json()["error"]["code"] == "model_not_found"


def test_a_wrong_key(server):
    with pytest.raises(HfHubHTTPError, match="key") as caught:
        chat(client_of(server, api_key="hf_wrong"))
    assert caught.value.response.status_code == 401


def test_an_answer_that_breaks_off_is_an_event_in_the_stream(files):
    rows = []

    def fail(ids, logits):
        rows.append(len(ids))
        if len(rows) == 10:
            raise RuntimeError("the processor broke")
        return logits

    with running(
        lambda: LLM.from_files(files[0], **SIZES), answering={"logits_processors": [fail]}
    ) as server:
        client = client_of(ready(server))
        chunks = iter(chat(client, stream=True, extra_body={"ignore_eos": True, "draft_tokens": "off"}))
        assert next(chunks).choices
        with pytest.raises(UnknownError, match="the processor broke"):
            list(chunks)
        assert chat(client, max_tokens=2).usage.completion_tokens == 2


def test_the_clients_own_limit_of_time(files):
    gate = Gate()
    with running(
        lambda: LLM.from_files(files[0], **SIZES), answering={"logits_processors": [gate]}
    ) as server:
        ready(server)
        gate.shut()
        with pytest.raises(InferenceTimeoutError):
            chat(client_of(server, timeout=0.2))
        gate.open()
        assert chat(client_of(server), max_tokens=2).usage.completion_tokens == 2


def test_many_at_once_with_its_asyncio_client(server, client):
    async def ask() -> list[str]:
        options = {"base_url": f"{server.url}/v1", "api_key": KEY, "timeout": SECONDS}
        async with AsyncInferenceClient(**options) as many:
            answers = await asyncio.gather(*(chat(many) for _ in range(5)))
        return [answer.choices[0].message.content for answer in answers]

    assert set(asyncio.run(ask())) == {chat(client).choices[0].message.content}
