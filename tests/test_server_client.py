"""The official `openai` client, unchanged, against a real server with a tiny model."""

from __future__ import annotations

from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from localspec import LLM

from .serverkit import QUESTION, ready, running
from .tinygguf import write_pair

SIZES = {"n_ctx": 512, "threads": 1, "draft_tokens": 3, "cache_type_v": "bf16"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(files):
    with running(lambda: LLM.from_files(*files, **SIZES)) as started:
        yield ready(started)


@pytest.fixture(scope="module")
def client(server):
    with server.client() as made:
        yield made


@pytest.fixture(scope="module")
def alone(files):
    """The same engine without a server."""
    with LLM.from_files(*files, **SIZES) as llm:
        yield llm


def chat(client, **options):
    return client.chat.completions.create(
        **{"model": "tiny", "messages": QUESTION, "max_tokens": 40} | options
    )


def test_a_chat_is_what_the_engine_answers_alone(client, alone):
    expected = alone.generate(QUESTION, temperature=0, max_tokens=40)
    answer = chat(client)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == expected.stats.prompt_tokens
    assert answer.usage.completion_tokens == 40
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 40


def test_a_stream_gives_the_same_text_and_its_usage_last(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({c.id for c in chunks}) == 1


def test_a_stream_without_options_says_nothing_of_usage(client):
    assert all(c.usage is None and c.choices for c in chat(client, stream=True))


def test_drafted_tokens_are_counted(client):
    answer = chat(client)
    details, timings = answer.usage.completion_tokens_details, answer.model_extra["timings"]
    assert details.accepted_prediction_tokens > 0
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == timings["draft_n"]
    assert timings["draft_n_accepted"] == details.accepted_prediction_tokens
    assert timings["predicted_n"] == 40
    assert timings["prompt_n"] + timings["cache_n"] == answer.usage.prompt_tokens


def test_cached_tokens_are_told(client):
    chat(client)
    answer = chat(client)
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1


def test_a_request_may_switch_drafting_off_and_keeps_its_text(client):
    plain = chat(client, extra_body={"draft_tokens": "off"})
    assert plain.model_extra["timings"]["draft_n"] == 0
    assert plain.choices[0].message.content == chat(client).choices[0].message.content


def test_a_prediction_is_a_draft_source(files):
    options = {"extra_body": {"grammar": "root ::= [a-z]{60}"}, "max_tokens": 100}
    with (
        running(lambda: LLM.from_files(files[0], **SIZES | {"draft_tokens": 6})) as started,
        ready(started).client() as client,
    ):
        without = chat(client, **options)
        text = without.choices[0].message.content
        predicted = chat(client, **options, prediction={"type": "content", "content": text})
    assert predicted.choices[0].message.content == text
    details = [answer.usage.completion_tokens_details for answer in (without, predicted)]
    assert details[1].accepted_prediction_tokens > details[0].accepted_prediction_tokens


def test_a_seed_repeats_with_and_without_a_draft_and_choices_differ(client):
    options = {"seed": 7, "temperature": 1.0, "n": 3}
    first, second = chat(client, **options), chat(client, **options)
    plain = chat(client, **options, extra_body={"draft_tokens": "off"})
    texts = [[choice.message.content for choice in answer.choices] for answer in (first, second, plain)]
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0])) == 3
    assert texts[0][0] == chat(client, **options | {"n": 1}).choices[0].message.content
    assert first.usage.completion_tokens == 120
    assert first.usage.prompt_tokens == chat(client).usage.prompt_tokens


def test_a_stream_of_several_choices_gives_each_its_text(client):
    options = {"seed": 7, "temperature": 1.0, "n": 2}
    whole = chat(client, **options)
    texts = ["", ""]
    for chunk in chat(client, **options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_logprobs_have_openais_form(client):
    content = chat(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(content) == 40
    for item in content:
        assert len(item.top_logprobs) == 3
        assert item.logprob == pytest.approx(item.top_logprobs[0].logprob), "greedy takes the likeliest"
        assert bytes(item.bytes).decode("utf-8", "replace") == item.token
    streamed = [
        item
        for chunk in chat(client, logprobs=True, top_logprobs=3, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for item in choice.logprobs.content
    ]
    assert [item.token for item in streamed] == [item.token for item in content]


def test_completions_give_text_logprobs_and_echo(client, alone):
    expected = alone.generate("abc", temperature=0, max_tokens=12)
    answer = client.completions.create(model="tiny", prompt="abc", max_tokens=12, logprobs=2)
    assert answer.choices[0].text == expected.text
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 12
    assert all(1 <= len(best) <= 2 for best in logprobs.top_logprobs)
    echoed = client.completions.create(model="tiny", prompt="abc", max_tokens=12, echo=True)
    assert echoed.choices[0].text == "abc" + expected.text
    streamed = client.completions.create(model="tiny", prompt="abc", max_tokens=12, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == expected.text


def test_several_prompts_in_all_forms(client, alone):
    texts = [alone.generate(p, temperature=0, max_tokens=5).text for p in ("abc", "xyz")]
    answer = client.completions.create(model="tiny", prompt=["abc", "xyz"], max_tokens=5)
    assert [choice.text for choice in answer.choices] == texts
    ids = [alone.tokenize("abc"), alone.tokenize("xyz")]
    answer = client.completions.create(model="tiny", prompt=ids, max_tokens=5, n=2)
    assert [choice.text for choice in answer.choices] == [texts[0], texts[0], texts[1], texts[1]]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    answer = client.completions.create(model="tiny", prompt=ids[0], max_tokens=5)
    assert answer.choices[0].text == texts[0]
    assert answer.usage.prompt_tokens == len(ids[0])


def test_a_stop_string_ends_the_answer_and_is_not_shown(client):
    text = chat(client).choices[0].message.content
    stop = text[8:10]
    answer = chat(client, stop=stop)
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert chat(client, stop=[stop, "never"]).choices[0].message.content == text[: text.index(stop)]


def test_a_bias_bans_a_token(client):
    item = chat(client, logprobs=True, max_tokens=1).choices[0].logprobs.content[0]
    first = item.bytes[0]
    banned = chat(client, logprobs=True, max_tokens=1, logit_bias={str(first): -100})
    assert banned.choices[0].logprobs.content[0].bytes != item.bytes


def test_penalties_and_the_names_of_llama_cpp_reach_the_engine(client, alone):
    options = {"top_k": 5, "min_p": 0.1, "typical_p": 0.9, "repeat_penalty": 1.3, "repeat_last_n": 20}
    sampling = {"seed": 5, "temperature": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.2}
    expected = alone.generate(QUESTION, max_tokens=40, **sampling, **options)
    answer = chat(client, **sampling, extra_body=options)
    assert answer.choices[0].message.content == expected.text


class Verdict(BaseModel):
    kind: Literal["good", "bad"]
    certain: bool


def test_the_parse_helper_gives_an_object(client):
    answer = client.chat.completions.parse(
        model="tiny", messages=QUESTION, response_format=Verdict, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Verdict)
    assert answer.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(
        model="tiny", messages=QUESTION, response_format=Verdict, max_tokens=200
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == answer.choices[0].message.parsed


def test_a_grammar_holds(client):
    answer = chat(client, extra_body={"grammar": 'root ::= "yes" | "no"'})
    assert answer.choices[0].message.content in ("yes", "no")


def test_content_in_parts_and_a_developer_are_understood(client):
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]
    developer = chat(client, messages=[{"role": "developer", "content": "be"}, *QUESTION])
    system = chat(client, messages=[{"role": "system", "content": "be"}, *QUESTION])
    whole = chat(client, messages=[{"role": "user", "content": parts}])
    assert developer.choices[0].message.content == system.choices[0].message.content
    assert whole.choices[0].message.content == chat(client).choices[0].message.content


def test_null_is_absent_and_unknown_fields_are_ignored(server):
    names = (
        "temperature", "seed", "stop", "n", "logit_bias", "max_completion_tokens", "response_format", "tools",
        "tool_choice", "stream", "stream_options", "logprobs", "top_k", "prediction", "model",
    )  # fmt: skip
    plain = {"messages": QUESTION, "max_tokens": 10}
    odd = plain | dict.fromkeys(names) | {"user": "me", "store": True, "metadata": {"a": "b"}, "zzz": [1]}
    odd |= {"prediction": {"type": None, "content": "a"}}
    first, second = (server.post("/v1/chat/completions", body) for body in (plain, odd))
    assert second.status_code == 200
    assert first.json()["choices"] == second.json()["choices"]


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, model="other")
    assert caught.value.param == "model"
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stop": ["", "a"]}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": None, "max_completion_tokens": -5}, "max_completion_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages"),
        ({"messages": QUESTION, "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 3}}}},
         "response_format"),
        ({"extra_body": {"grammar": "root ::= ("}}, "grammar"),
        ({"extra_body": {"draft_tokens": -1}}, "draft_tokens"),
        ({"extra_body": {"verify": "never"}}, "verify"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": [{"role": "user", "content": "long " * 600}]}, "messages"),
        ({"messages": [{"role": "user", "content": "long " * 600}], "stream": True}, "messages"),
    ],
)  # fmt: skip
def test_a_bad_request_is_a_400_that_names_the_field(client, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **options)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_a_prompt_that_is_too_long_has_openais_code(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="long " * 600, max_tokens=5)
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
