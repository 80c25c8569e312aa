"""huggingface_hub's client, which speaks OpenAI's API with code of its own, unchanged, against a real server."""

from __future__ import annotations

import asyncio
import json

import jsonschema
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import BadRequestError, HfHubHTTPError

from localspec import LLM

from .scripted_llm import QWEN
from .serverkit import QUESTION, ready, running
from .tinygguf import write_llama

SECONDS = 60
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": SCHEMA},
}


@pytest.fixture(scope="module")
def llm_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("second")
    target = write_llama(folder / "target.gguf", seed=1, template=QWEN, n_ctx_train=2048, ends=True)
    return target, write_llama(folder / "draft.gguf", seed=1, noise=0.05, n_ctx_train=2048, ends=True)


@pytest.fixture(scope="module")
def url(llm_files):
    with running(lambda: LLM.from_files(*llm_files, n_ctx=2048, threads=1, draft_tokens=3)) as server:
        yield ready(server).url + "/v1"


@pytest.fixture(scope="module")
def client(url):
    return InferenceClient(base_url=url, timeout=SECONDS)


def chat(client, **options):
    return client.chat_completion(**{"messages": QUESTION, "model": "tiny", "max_tokens": 20} | options)


def test_a_chat_is_what_the_engine_answers_alone(client, llm_files):
    answer = chat(client)
    with LLM.from_files(*llm_files, n_ctx=2048, threads=1, draft_tokens=3) as llm:
        alone = llm.generate(QUESTION, temperature=0, max_tokens=20)
    assert answer.choices[0].message.content == alone.text
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (alone.stats.prompt_tokens, 20)
    assert answer.usage.total_tokens == alone.stats.prompt_tokens + 20


def test_a_stream_gives_the_same_text_and_its_usage(client):
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == chat(client).choices[0].message.content
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [20]


def test_a_seed_a_stop_and_logprobs(client):
    drawn = [chat(client, seed=3, temperature=1.0).choices[0].message.content for _ in range(2)]
    assert drawn[0] == drawn[1] != chat(client).choices[0].message.content
    letter = next(letter for letter in drawn[0] if letter.isascii() and letter.isprintable())
    stopped = chat(client, seed=3, temperature=1.0, stop=[letter]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == drawn[0].partition(letter)[0]
    content = chat(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(content) == 20
    assert all(len(item.top_logprobs) == 2 and item.logprob <= 0 for item in content)


def test_a_schema_holds_the_answer(client):
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
    answer = chat(client, response_format=form, max_tokens=200).choices[0]
    jsonschema.validate(json.loads(answer.message.content), SCHEMA)


def test_a_tool_is_called(client):
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = chat(client, tools=[WEATHER], tool_choice=choice, max_tokens=300).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_its_own_errors_carry_our_sentences(client):
    with pytest.raises(BadRequestError, match=r"temperature"):
        chat(client, temperature=-1.0)
    with pytest.raises(HfHubHTTPError, match=r"There is no model 'other'. This server has tiny."):
        chat(client, model="other")
    assert chat(client).choices[0].message.content


def test_many_at_once_with_its_asyncio_client(url, client):
    async def ask() -> list[str]:
        async with AsyncInferenceClient(base_url=url, timeout=SECONDS) as many:
            answers = await asyncio.gather(*(chat(many) for _ in range(5)))
        return [answer.choices[0].message.content for answer in answers]

    assert set(asyncio.run(ask())) == {chat(client).choices[0].message.content}
