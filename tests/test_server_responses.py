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
        ({"truncation": "never"}, "truncation"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
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


LOGPROBS = "message.output_text.logprobs"


def letters(logprobs: Any) -> str:
    """The letters that have log-probabilities, each of which is minus its id."""
    for item in logprobs:
        assert (item.logprob, item.top_logprobs) == (-ord(item.token), [])
    return "".join(item.token for item in logprobs)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    "asked", [{"include": [LOGPROBS]}, {"top_logprobs": 3}, {"include": [LOGPROBS], "top_logprobs": 0}]
)
def test_the_text_has_log_probabilities_and_thoughts_and_calls_have_none(
    client, says, llm, step, asked, monkeypatch
):
    monkeypatch.setattr(llm, "step", step)
    answer = f"<think>Hm.</think>Yes, \u00e9.{CALL}"
    says(answer, answer)
    response = create(client, tools=[TOOL], **asked)
    _, message, call = response.output
    text = message.content[0]
    assert letters(text.logprobs) == text.text == "Yes, \u00e9."
    assert [bytes(item.bytes).decode() for item in text.logprobs] == [item.token for item in text.logprobs]
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    assert call.name == "add"
    events = list(create(client, tools=[TOOL], stream=True, **asked))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(letters(event.logprobs) for event in deltas) == letters(text.logprobs)
    for event in deltas:
        assert letters(event.logprobs) == event.delta
    done = next(event for event in events if event.type == "response.output_text.done")
    assert letters(done.logprobs) == letters(text.logprobs)
    added = [event for event in events if event.type == "response.content_part.added"]
    assert all(not getattr(event.part, "logprobs", []) for event in added)
    assert events[-1].response.output[1].content[0].logprobs == text.logprobs


def test_without_asking_there_are_none(client, says, llm):
    says("Yes.", "Yes.")
    for options in ({}, {"top_logprobs": 0}):
        assert create(client, **options).output[0].content[0].logprobs == []
    assert [call["params"].logprobs for call in llm.calls] == [None, None]


def test_log_probabilities_are_those_of_a_chat(tmp_path):
    path = write_llama(tmp_path / "tiny.gguf", seed=1)
    with (
        running(lambda: LLM.from_files(path, n_ctx=256, threads=1, draft_tokens=3)) as server,
        ready(server).client() as client,
    ):
        message = {"role": "user", "content": "hello there"}
        grammar = {"grammar": "root ::= [a\u00e9\u2603]{9}"}
        asked = {"model": "tiny", "messages": [message], "logprobs": True, "top_logprobs": 3}
        content = client.chat.completions.create(**asked, extra_body=grammar).choices[0].logprobs.content
        response = create(client, "hello there", top_logprobs=3, extra_body=grammar)
        logprobs = response.output[0].content[0].logprobs
        assert response.top_logprobs == 3
        assert [item.bytes for item in logprobs] == [item.bytes for item in content]
        assert b"".join(bytes(item.bytes) for item in logprobs).decode() == response.output_text
        for one, other in zip(logprobs, content, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [top.bytes for top in one.top_logprobs] == [top.bytes for top in other.top_logprobs]


# --- truncation


SYSTEM = "Be short."


def turn(number: int, *, size: int = 40, tools: int = 0) -> list[dict[str, Any]]:
    """A question, calls with their results, and an answer."""
    items: list[dict[str, Any]] = [{"role": "user", "content": f"question {number} ".ljust(size, "q")}]
    for index in range(tools):
        call = f"call_{number}_{index}"
        items += [
            {"type": "function_call", "call_id": call, "name": "add", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": call,
                "output": f"result {number} {index} ".ljust(size, "r"),
            },
        ]
    return [*items, {"role": "assistant", "content": f"answer {number} ".ljust(size, "a")}]


def prompt_of(llm: ScriptedLLM, messages: list[dict[str, Any]]) -> str:
    """What the template makes of messages."""
    rest = llm.prompts[:]
    text = "".join(map(chr, llm.render(messages)))
    llm.prompts[:] = rest
    return text


@pytest.fixture
def narrow():
    """A server whose model reads 400 letters, and its model."""
    llm = ScriptedLLM(QWEN, n_ctx=400)
    with running(lambda: llm) as server:
        yield ready(server), llm


def asked(server, items, **options):
    body = {"input": items, "truncation": "auto", "instructions": SYSTEM} | options
    return server.post("/v1/responses", body)


@pytest.mark.parametrize("room", [1, 20, 60, 100, 101, 5000, None])
def test_as_few_of_the_oldest_messages_as_can_be_are_dropped(narrow, room):
    server, llm = narrow
    items = [item for number in range(8) for item in turn(number)]
    question = {"role": "user", "content": "and now?"}
    for count in range(len(items) + 1):
        given = [*items[len(items) - count :], question]
        llm.answers.append("Yes.")
        answer = asked(server, given, **({} if room is None else {"max_output_tokens": room})).json()
        limit = 400 - min(room or 100, 100)
        system = {"role": "system", "content": SYSTEM}
        fitting = [
            dropped
            for dropped in range(len(given))
            if len(prompt_of(llm, [system, *given[dropped:]])) <= limit
        ]
        assert answer["dropped_messages"] == min(fitting)
        warned = [item for item in answer.get("warnings", []) if item["code"] == "messages_dropped"]
        assert len(warned) == (min(fitting) > 0)
        assert all(str(min(fitting)) in item["message"] or min(fitting) == 1 for item in warned)
        assert answer["truncation"] == "auto"
        assert llm.prompts[-1] == prompt_of(llm, [system, *given[min(fitting) :]])
    assert min(fitting) > 0


def test_a_result_goes_with_its_call(narrow):
    server, llm = narrow
    for tools in range(1, 5):
        for size in (20, 40, 60):
            items = [*turn(1, size=size, tools=tools), {"role": "user", "content": "and now?"}]
            llm.answers.append("Yes.")
            answer = asked(server, items, tools=[TOOL], instructions=None).json()
            kept = llm.prompts[-1]
            results, calls = kept.count("<|im_start|>tool"), kept.count('<tool_call>{"name": "add"')
            assert answer["status"] == "completed"
            assert results <= calls, kept
            assert "and now?" in kept


LOOP = "{%- for message in messages if"
QUESTION_FIRST = "{%- if messages[0].role == 'assistant' %}{{ raise_exception('user first') }}{% endif %}"
STRICT = QWEN.replace(LOOP, QUESTION_FIRST + LOOP)


def test_a_template_that_wants_a_question_first_gets_one():
    llm = ScriptedLLM(STRICT, n_ctx=300)
    with running(lambda: llm) as server:
        ready(server)
        for count in range(1, 8):
            items = [item for number in range(count) for item in turn(number)] + [
                {"role": "user", "content": "now?"}
            ]
            llm.answers.append("Yes.")
            answer = asked(server, items, instructions=None).json()
            assert answer["status"] == "completed", answer
            assert answer["dropped_messages"] % 2 == 0
            assert (
                llm.prompts[-1].startswith("<|im_start|>user\nquestion")
                or llm.prompts[-1].count("<|im_start|>") == 2
            )


def test_what_does_not_fit_even_so_is_refused_with_its_length(narrow):
    server, _ = narrow
    items = [*turn(1), {"role": "user", "content": "x" * 500}]
    for given in (items, items[-1:]):
        error = asked(server, given).json()["error"]
        assert (error["param"], error["code"], error["n_ctx"]) == ("input", "context_length_exceeded", 400)
        assert 500 < error["n_prompt_tokens"] < 600


def test_without_truncation_nothing_is_dropped(narrow):
    server, llm = narrow
    items = [item for number in range(8) for item in turn(number)]
    for options in ({"truncation": "disabled"}, {"truncation": None}):
        assert asked(server, [*items, {"role": "user", "content": "?"}], **options).status_code == 400
    llm.answers.append("Yes.")
    answer = asked(server, "Hello?", truncation="disabled").json()
    assert (answer["truncation"], "dropped_messages" in answer) == ("disabled", False)


def test_what_was_dropped_is_still_part_of_the_conversation(narrow):
    """The next response may have more room, or a larger context."""
    server, llm = narrow
    items = [item for number in range(8) for item in turn(number)]
    llm.answers.extend(["Yes.", "No."])
    first = asked(server, [*items, {"role": "user", "content": "and now?"}]).json()
    second = asked(server, "and then?", previous_response_id=first["id"]).json()
    assert second["dropped_messages"] >= first["dropped_messages"] > 0
    assert "and now?" in llm.prompts[-1] and "and then?" in llm.prompts[-1]


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


def kept(name: str, size: int = 0) -> Kept:
    """One of about `size` characters."""
    return Kept({"id": name}, [{"content": "x" * size}])


def test_what_was_removed_from_the_store_leaves_nothing_behind():
    """Neither a place nor its size: both would push others out, and a size without its response cannot be dropped."""
    store = ResponseStore(most=3, characters=1000)
    for _ in range(50):
        for name in "abc":
            store.add(name, kept(name, 250))
        assert [store.remove(name) for name in "abc"] == [True] * 3
        assert [store.remove(name) for name in "abc"] == [False] * 3
    for name in "def":
        store.add(name, kept(name, 250))
    assert [name for name in "abcdef" if store.get(name)] == list("def")
    assert store.remove("e")
    store.add("g", kept("g", 250))
    assert [name for name in "defg" if store.get(name)] == list("dfg")
    store.add("h", kept("h", 250))
    assert [name for name in "defgh" if store.get(name)] == list("fgh")


def test_the_bounds_of_the_store_are_exact():
    size = kept("a", 100).size
    for room, expected in ((3 * size, "abc"), (3 * size - 1, "bc"), (size, "c"), (size - 1, "")):
        store = ResponseStore(most=3, characters=room)
        for name in "abc":
            store.add(name, kept(name, 100))
        assert "".join(name for name in "abc" if store.get(name)) == expected
    store = ResponseStore(most=3, characters=3 * size)
    for name in "aab":  # the same name again takes the place of the first
        store.add(name, kept(name, 100))
    store.add("c", kept("c", 100))
    assert [name for name in "abc" if store.get(name)] == list("abc")


def test_the_store_is_bounded():
    store = ResponseStore(most=2, characters=1000)
    for name in "abc":
        store.add(name, Kept({"id": name}, [{"content": name}]))
    assert [name for name in "abc" if store.get(name)] == ["b", "c"]
    store.add("d", Kept({"id": "d"}, [{"content": "x" * 960}]))
    assert [name for name in "abcd" if store.get(name)] == ["d"]
    for large in (
        Kept({"id": "e"}, [{"content": "x" * 2000}]),
        Kept({"id": "e", "instructions": "x" * 2000}, [{"content": "x"}]),
    ):
        store.add("e", large)
        assert store.get("e") is None
