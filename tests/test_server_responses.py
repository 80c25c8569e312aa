"""POST /v1/responses through the official client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from localspec import LLM
from localspec.server.response_input import PASSED_OVER
from localspec.server.response_store import Kept, ResponseStore

from .scripted_llm import QWEN, ScriptedLLM
from .serverkit import ready, running
from .tinygguf import write_llama

PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "add", "description": "Sum.", "strict": True, "parameters": PARAMETERS}
IMAGE = {"type": "input_image", "image_url": "a"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture(scope="module")
def llm():
    return ScriptedLLM(QWEN)


@pytest.fixture(scope="module")
def server(llm):
    with running(lambda: llm) as started:
        yield ready(started)


@pytest.fixture(scope="module")
def client(server):
    with server.client() as made:
        yield made


@pytest.fixture
def says(llm):
    def prepare(*answers: str) -> None:
        llm.answers.clear()
        llm.answers.extend(answers)
        llm.prompts.clear()
        llm.calls.clear()

    return prepare


def create(client: openai.OpenAI, given: Any = "Hello?", **options: Any) -> Any:
    return client.responses.create(**{"model": "tiny", "input": given} | options)


def test_a_text(client, says, llm):
    says("Hello there.")
    response = create(client, instructions="Be short.", max_output_tokens=50, temperature=0.5, top_p=0.9)
    assert response.output_text == "Hello there."
    assert (response.object, response.status, response.error) == ("response", "completed", None)
    assert response.incomplete_details is None
    assert (
        llm.prompts[0]
        == "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\n"
    )
    params = llm.calls[0]["params"]
    assert (params.max_tokens, params.temperature, params.top_p) == (50, 0.5, 0.9)
    usage = response.usage
    assert usage.output_tokens == len("Hello there.")
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens_details.cached_tokens == 0


def test_the_official_order_of_events(client, says):
    says("Hello there.")
    events = list(create(client, stream=True))
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas == 4
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type.endswith("delta")) == "Hello there."
    assert events[0].response.status == "in_progress"
    assert events[0].response.output == []
    assert events[2].item.content == []
    assert events[-4].text == events[-3].part.text == events[-2].item.content[0].text == "Hello there."
    assert events[-1].response.output_text == "Hello there."
    assert events[-1].response.usage.output_tokens == len("Hello there.")
    assert len({event.response.id for event in (events[0], events[-1])}) == 1


def test_events_have_their_names_on_the_wire(server, says):
    says("Hi.")
    lines = server.post("/v1/responses", {"input": "Hello?", "stream": True}).text.splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert names == [item["type"] for item in data]
    assert "[DONE]" not in lines


def test_the_clients_own_stream_helper(client, says):
    says(f"<think>Hm.</think>Yes.{CALL}")
    with client.responses.stream(model="tiny", input="Hello?", tools=[TOOL]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == "Yes."
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]


def test_thoughts_text_and_a_call(client, says):
    answer = f"<think>\nHm.\n</think>\n\nYes.\n{CALL}"
    says(answer, answer)
    response = create(client, tools=[TOOL])
    thoughts, message, call = response.output
    assert (thoughts.type, thoughts.content[0].text) == ("reasoning", "Hm.")
    assert (message.type, message.content[0].text) == ("message", "Yes.")
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 1})
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    events = list(create(client, tools=[TOOL], stream=True))
    kinds = [event.type for event in events]
    assert kinds.index("response.reasoning_text.delta") < kinds.index("response.reasoning_text.done")
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    assert [event.output_index for event in events if event.type == "response.output_item.added"] == [0, 1, 2]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert "".join(deltas) == done.arguments == '{"a": 1}'


def test_the_result_of_a_call_goes_back(client, says, llm):
    says(CALL, "Two.")
    first = create(client, "1 + 1?", tools=[TOOL])
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
    again = [{"role": "user", "content": "1 + 1?"}, *(item.model_dump() for item in first.output), result]
    assert create(client, again, tools=[TOOL]).output_text == "Two."
    told = llm.prompts[1]
    says("Two.")
    assert create(client, [result], tools=[TOOL], previous_response_id=first.id).output_text == "Two."
    assert llm.prompts[0] == told
    assert (
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>\n<|im_start|>tool\n2<|im_end|>'
        in told
    )


def test_a_forced_call(client, says, llm):
    says('{"name": "add", "arguments": {"a": 1}}')
    response = create(client, tools=[TOOL], tool_choice={"type": "function", "name": "add"})
    assert response.output[0].name == "add"
    assert llm.calls[0]["json_schema"]["properties"]["name"] == {"const": "add"}


def test_a_conversation_goes_on(client, says, llm):
    says("Blue.", "Because.", "Twice.")
    first = create(client, "Colour?", instructions="Be short.")
    second = create(client, "Why?", previous_response_id=first.id, instructions="Be long.")
    assert second.previous_response_id == first.id
    assert "Be short." not in llm.prompts[1]
    assert (
        "Colour?<|im_end|>\n<|im_start|>assistant\nBlue.<|im_end|>\n<|im_start|>user\nWhy?" in llm.prompts[1]
    )
    assert client.responses.retrieve(first.id).output_text == "Blue."
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, previous_response_id=first.id)
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


@pytest.mark.parametrize(
    "broken", [CALL[:-15], CALL.replace('"a": 1', "a: 1"), CALL.replace("1", '"\\u0000"')]
)
def test_a_conversation_goes_on_behind_a_call_that_is_no_json(client, says, llm, broken):
    says(f"Sum.\n{CALL}\n{broken}", "Well.")
    first = create(client, tools=[TOOL])
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    assert create(client, "Why?", previous_response_id=first.id).output_text == "Well."
    assert llm.prompts[1].count("<tool_call>") == 2


def test_what_is_not_to_be_kept_is_not(client, says):
    says("Blue.")
    response = create(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_an_answer_cut_off(client, says):
    says("Hello there.", "Hello there.")
    response = create(client, max_output_tokens=5)
    assert (response.status, response.output_text) == ("incomplete", "Hello")
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert list(create(client, max_output_tokens=5, stream=True))[-1].type == "response.incomplete"


def test_an_empty_answer(client, says):
    says("")
    assert create(client).output_text == ""


def test_items_of_earlier_responses_are_referred_to(client, says, llm):
    says(f"<think>Hm.</think>Sum.\n{CALL}", "Two.", "Two.")
    first = create(client, tools=[TOOL])
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "2"}
    question = {"role": "user", "content": "Hello?"}
    create(client, [question, *(item.model_dump() for item in first.output), result], tools=[TOOL])
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    references[1].pop("type")
    assert create(client, [question, *references, result], tools=[TOOL]).output_text == "Two."
    assert llm.prompts[1] == llm.prompts[2]
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="There is no item"):
        create(client, [question, *references, result], tools=[TOOL])


@pytest.mark.parametrize("kind", [*PASSED_OVER])
def test_items_about_tools_that_openai_runs_are_passed_over_with_a_warning(client, says, llm, kind):
    says("Yes.")
    item = {"type": kind, "id": "x_1", "status": "completed", "output": "a"}
    response = create(
        client, [{"role": "user", "content": "One?"}, item, {"role": "user", "content": "Two?"}]
    )
    (warning,) = response.model_extra["warnings"]
    assert (warning["param"], warning["code"]) == ("input[1]", "item_passed_over")
    assert kind in warning["message"]
    assert "One?" in llm.prompts[0]
    assert "Two?" in llm.prompts[0]


def test_old_calls_of_custom_tools_are_shown_as_calls(client, says, llm):
    says("Yes.", "Yes.")
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"}
    result = {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done."}
    create(client, [{"role": "user", "content": "One?"}, call, result])
    custom = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    messages = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "tool_calls": [custom]},
        {"role": "tool", "tool_call_id": "c1", "content": "Done."},
    ]
    client.chat.completions.create(model="tiny", messages=messages)
    assert llm.prompts[0] == llm.prompts[1]
    assert '{"name": "patch", "arguments": "*** Begin"}' in llm.prompts[0]


class Sum(BaseModel):
    """A form for the client's parse helper."""

    total: int


def test_a_given_form(client, says, llm):
    says('{"total": 3}')
    response = client.responses.parse(model="tiny", input="1 + 2?", text_format=Sum)
    assert response.output_parsed == Sum(total=3)
    assert llm.calls[0]["json_schema"]["required"] == ["total"]
    says("{}")
    create(client, text={"format": {"type": "json_object"}})
    assert llm.calls[0]["json_schema"] == {"type": "object"}


def test_items_of_every_kind(client, says, llm):
    says("Yes.")
    create(
        client,
        [
            {
                "role": "developer",
                "content": [{"type": "input_text", "text": "Be "}, {"type": "input_text", "text": "kind."}],
            },
            {"type": None, "role": "user", "content": "One?"},
            {"type": "reasoning", "id": "rs_0", "summary": [], "content": None, "encrypted_content": "a"},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
            },
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Two.", "annotations": []}],
            },
            {"role": "user", "content": "Three?"},
        ],
        instructions="Be short.",
    )
    assert "<|im_start|>system\nBe short.\n\nBe kind.<|im_end|>\n<|im_start|>user\nOne?" in llm.prompts[0]
    assert "<think>Hm.</think>Two.<|im_end|>" in llm.prompts[0]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].id"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"id": "a"}]}, "input[0].id"),
        ({"input": [{"type": "compaction", "encrypted_content": "a"}]}, "input[0].type"),
        ({"input": [{"type": ["message"]}]}, "input[0].type"),
        ({"input": [{"type": "web_search_call", "id": "a"}]}, "input"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": ["a"]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": "a\0b"}, "input"),
        ({"instructions": "a\0b"}, "instructions"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "a"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"tools": [{"name": "a"}]}, "tools[0].type"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "b"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"max_output_tokens": -5}, "max_output_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"n": 2}, "n"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(server, says, options, param):
    says("never")
    answer = server.post("/v1/responses", {"input": "Hello?"} | options)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_null_is_as_good_as_absent(server, says):
    says("Yes.")
    nulls = dict.fromkeys(
        ("instructions", "tools", "tool_choice", "text", "store", "temperature", "stream", "metadata")
    )
    assert server.post("/v1/responses", {"input": "Hello?", "unknown": 1} | nulls).status_code == 200


def test_a_real_engine(tmp_path_factory):
    """The answer of a chat, in another form; a prompt that is too long is refused before the stream."""
    path = write_llama(tmp_path_factory.mktemp("responses") / "tiny.gguf", seed=1)
    with (
        running(lambda: LLM.from_files(path, n_ctx=256, threads=1, draft_tokens=3)) as server,
        ready(server).client() as client,
    ):
        message = {"role": "user", "content": "hello there"}
        chat = client.chat.completions.create(model="tiny", messages=[message], max_tokens=20)
        events = list(create(client, "hello there", max_output_tokens=20, stream=True))
        assert events[-1].response.output_text == chat.choices[0].message.content
        assert events[-1].response.usage.output_tokens == 20
        with pytest.raises(openai.BadRequestError) as caught:
            create(client, "a" * 1000, stream=True)
        assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


def test_the_store_is_bounded():
    store = ResponseStore(most=2, characters=1000)
    for name in "abc":
        store.add(name, Kept({"id": name}, [{"content": name}]))
    assert [name for name in "abc" if store.get(name)] == ["b", "c"]
    store.add("d", Kept({"id": "d"}, [{"content": "x" * 960}]))
    assert [name for name in "abcd" if store.get(name)] == ["d"]
    for kept in (
        Kept({"id": "e"}, [{"content": "x" * 2000}]),
        Kept({"id": "e", "instructions": "x" * 2000}, [{"content": "x"}]),
    ):
        store.add("e", kept)
        assert store.get("e") is None
