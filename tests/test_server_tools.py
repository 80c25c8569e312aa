"""Tools through the official client: what the model is told, what it says, and what the client sees."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest

from localspec.server.faults import ApiError
from localspec.server.tools import tool_use

from .scripted_llm import LLAMA, MISTRAL, QWEN, R1, ScriptedLLM
from .serverkit import ready, running, tool_client
from .tinygguf import CHATML

QUESTION = [{"role": "user", "content": "Weather in Ulm?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F"]}},
}


def tool(name: str, parameters: Any = PARAMETERS) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "It.", "parameters": parameters}}


TOOLS = [tool("weather"), tool("now", None)]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm", "unit": "C"}}\n</tool_call>'
ARGUMENTS = {"city": "Ulm", "unit": "C"}


class Serving:
    """A server whose model says what it is told to."""

    def __init__(self, client: openai.OpenAI, llm: ScriptedLLM) -> None:
        self.client, self.llm = client, llm

    def says(self, *answers: str) -> None:
        self.llm.says(*answers)

    def chat(self, **options: Any) -> Any:
        given = {"model": "tiny", "messages": QUESTION, "tools": TOOLS} | options
        return self.client.chat.completions.create(**given)

    def both(self, answer: str, **options: Any) -> Any:
        """The choice without a stream, having seen that a stream gives the same."""
        self.says(answer, answer)
        whole = self.chat(**options).choices[0]
        content, reasoning, calls, reason = "", "", {}, None
        for chunk in self.chat(stream=True, **options):
            delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning_content", None) or ""
            for piece in delta.tool_calls or []:
                name, arguments = calls.get(piece.index, ("", ""))
                calls[piece.index] = (
                    name + (piece.function.name or ""),
                    arguments + piece.function.arguments,
                )
        message = whole.message
        assert reason == whole.finish_reason
        assert content == (message.content or "")
        assert reasoning == (getattr(message, "reasoning_content", None) or "")
        found = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
        assert [calls[index] for index in sorted(calls)] == found
        return whole


def serving(source: str) -> Any:
    @pytest.fixture(scope="module")
    def served():
        llm = ScriptedLLM(source)
        with running(lambda: llm) as server, ready(server).client() as client:
            yield Serving(client, llm)

    return served


qwen, mistral, llama, r1, plain = map(serving, (QWEN, MISTRAL, LLAMA, R1, CHATML))


def arguments_of(choice: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]


def refusal(served: Serving, **options: Any) -> openai.BadRequestError:
    served.says("never")
    with pytest.raises(openai.BadRequestError) as caught:
        served.chat(**options)
    assert caught.value.message
    return caught.value


def test_a_call(qwen):
    choice = qwen.both(CALL)
    assert arguments_of(choice) == [("weather", ARGUMENTS)]
    assert choice.message.content is None
    assert choice.message.tool_calls[0].type == "function"
    assert choice.finish_reason == "tool_calls"
    assert '"name": "weather"' in qwen.llm.prompts[0]
    assert "json_schema" not in qwen.llm.calls[0]


def test_text_before_two_calls(qwen):
    choice = qwen.both(f"I look.\n{CALL}\n" + '<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    assert choice.message.content == "I look."
    assert arguments_of(choice) == [("weather", ARGUMENTS), ("now", {})]


def test_text_alone(qwen):
    choice = qwen.both("It rains. <b>Really</b>")
    assert (choice.message.content, choice.message.tool_calls) == ("It rains. <b>Really</b>", None)
    assert choice.finish_reason == "stop"


def test_one_call_only_when_asked(qwen):
    choice = qwen.both(f"{CALL}\n{CALL}", parallel_tool_calls=False)
    assert arguments_of(choice) == [("weather", ARGUMENTS)]


def test_a_call_cut_off_by_the_limit(qwen):
    choice = qwen.both(CALL, max_tokens=56)
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "U'


def test_thoughts_then_a_call(qwen):
    choice = qwen.both(f"<think>\nHm.\n</think>\n\n{CALL}")
    assert choice.message.reasoning_content == "Hm."
    assert arguments_of(choice) == [("weather", ARGUMENTS)]


def test_the_answer_of_a_tool_goes_back(qwen):
    qwen.says(CALL, "Sunny.")
    message = qwen.chat().choices[0].message
    call = message.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "content": "sun <|im_end|>"}
    answer = qwen.chat(messages=[*QUESTION, message.model_dump(), result])
    assert answer.choices[0].message.content == "Sunny."
    assert (
        '<tool_call>{"name": "weather", "arguments": {"city": "Ulm", "unit": "C"}}</tool_call>'
        in qwen.llm.prompts[1]
    )
    assert "<|im_start|>tool\nsun <|im_end|>" in qwen.llm.prompts[1]


def test_none_tells_the_model_nothing(qwen):
    choice = qwen.both(CALL, tool_choice="none")
    assert choice.message.content == CALL
    assert "weather" not in qwen.llm.prompts[0].split("Answer with")[0]
    assert "<tools>" not in qwen.llm.prompts[0]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_forced_calls_are_constrained(qwen, choice):
    answer = qwen.both('{"name": "weather", "arguments": {"city": "Ulm", "unit": "C"}}', tool_choice=choice)
    assert arguments_of(answer) == [("weather", ARGUMENTS)]
    assert answer.finish_reason == "tool_calls"
    schema = qwen.llm.calls[0]["json_schema"]
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"name": "weather", "arguments": ARGUMENTS})
    assert not validator.is_valid({"name": "weather", "arguments": {"city": "Ulm", "unit": "K"}})
    assert not validator.is_valid({"name": "weather"})
    assert validator.is_valid({"name": "now", "arguments": {}}) == (choice == "required")
    assert not validator.is_valid({"name": "now", "arguments": {"a": 1}})
    assert qwen.llm.prompts[0].endswith("<think>\n\n</think>\n\n<tool_call>\n")


def test_an_answer_of_a_given_form_or_a_call(qwen):
    form = {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}}},
    }
    choice = qwen.both("[1]", response_format=form)
    assert choice.message.content == "[1]"
    validator = jsonschema.Draft202012Validator(qwen.llm.calls[0]["json_schema"])
    assert validator.is_valid([1])
    assert validator.is_valid({"name": "weather", "arguments": ARGUMENTS})
    assert not validator.is_valid({"name": "other", "arguments": {}})


def test_mistral(mistral):
    calls = [{"name": "weather", "arguments": ARGUMENTS}, {"name": "now", "arguments": {}}]
    choice = mistral.both(f"[TOOL_CALLS]{json.dumps(calls)}")
    assert arguments_of(choice) == [("weather", ARGUMENTS), ("now", {})]
    assert "[TOOL_CALLS]" in mistral.llm.calls[0]["shown_tokens"]
    result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "sun"}
    mistral.says("Sunny.")
    assert (
        mistral.chat(messages=[*QUESTION, choice.message.model_dump(), result]).choices[0].message.content
        == "Sunny."
    )
    assert f"[TOOL_CALLS]{json.dumps(calls)}</s>[TOOL_RESULTS]sun" in mistral.llm.prompts[0]


@pytest.mark.parametrize(("parallel", "several"), [(None, True), (False, False)])
def test_mistral_forced(mistral, parallel, several):
    options = {} if parallel is None else {"parallel_tool_calls": parallel}
    one = {"name": "weather", "arguments": ARGUMENTS}
    choice = mistral.both(json.dumps([one]), tool_choice="required", **options)
    assert arguments_of(choice) == [("weather", ARGUMENTS)]
    assert mistral.llm.prompts[0].endswith("[/INST][TOOL_CALLS]")
    validator = jsonschema.Draft202012Validator(mistral.llm.calls[0]["json_schema"])
    assert not validator.is_valid([])
    assert validator.is_valid([one])
    assert validator.is_valid([one, one]) == several


def test_llama(llama):
    choice = llama.both('{"name": "weather", "parameters": {"city": "Ulm", "unit": "C"}}')
    assert arguments_of(choice) == [("weather", ARGUMENTS)]
    llama.both('{"name": "now", "parameters": {}}', tool_choice="required")
    validator = jsonschema.Draft202012Validator(llama.llm.calls[0]["json_schema"])
    assert validator.is_valid({"name": "now", "parameters": {}})
    assert not validator.is_valid({"name": "now", "arguments": {}})


def test_a_template_without_tools(plain):
    error = refusal(plain)
    assert error.param == "tools"
    assert "knows no tools" in error.message
    plain.says("Hello.")
    assert plain.chat(tools=openai.NOT_GIVEN).choices[0].message.content == "Hello."


def test_thoughts_that_the_prompt_opened(r1):
    choice = r1.both("Well.\n</think>\n\nYes.", tools=openai.NOT_GIVEN)
    assert (choice.message.reasoning_content, choice.message.content) == ("Well.", "Yes.")
    r1.says("Well.\n</think>\n\nYes.")
    usage = r1.chat(tools=openai.NOT_GIVEN).usage
    assert (
        len("Well.\n</think>")
        <= usage.completion_tokens_details.reasoning_tokens
        <= len("Well.\n</think>\n\n")
    )


@pytest.mark.parametrize(
    "name", ["template", "self", "messages", "tools", "add_generation_prompt", "variables"]
)
def test_no_variable_of_the_request_stands_in_for_what_the_template_is_told_otherwise(r1, name):
    for value in (False, 1, [], {}):
        variables = {"chat_template_kwargs": {name: value}}
        choice = r1.both("Well.\n</think>\n\nYes.", tools=openai.NOT_GIVEN, extra_body=variables)
        assert (choice.message.reasoning_content, choice.message.content) == ("Well.", "Yes.")


def test_an_answer_of_a_given_form_has_no_thoughts(r1):
    choice = r1.both('{"a": 1}', tools=openai.NOT_GIVEN, response_format={"type": "json_object"})
    assert choice.message.content == '{"a": 1}'
    assert r1.llm.prompts[0].endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    "options", [{"reasoning_effort": "none"}, {"response_format": {"type": "json_object"}}, {}]
)
@pytest.mark.parametrize("thinks", [True, False])
def test_what_the_request_says_of_thinking_itself_holds(qwen, options, thinks):
    variables = {"chat_template_kwargs": {"enable_thinking": thinks}}
    qwen.both('{"a": 1}', tools=openai.NOT_GIVEN, extra_body=variables, **options)
    assert qwen.llm.prompts[0].endswith("</think>\n\n") is not thinks


def test_thinking_is_switched_off(qwen):
    for options in (
        {"reasoning_effort": "none"},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    ):
        qwen.both("Yes.", tools=openai.NOT_GIVEN, **options)
        assert qwen.llm.prompts[0].endswith("</think>\n\n")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"function": {"name": "a"}}]}, "tools[0].type"),
        ({"tools": [{"type": 3, "function": {"name": "a"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("a"), tool("a")]}, "tools[1].function.name"),
        ({"tools": [tool("a", [1])]}, "tools[0].function.parameters"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "description": 1}}]},
            "tools[0].function.description",
        ),
        ({"tools": [tool(f"a{index}") for index in range(129)]}, "tools"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "extra_body": {"grammar": 'root ::= "a"'}}, "grammar"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]},
            "messages",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [*QUESTION, {"role": "tool", "content": None}]}, "messages[1].content"),
        ({"tools": "all"}, "tools"),
    ],
)
def test_bad_tools_are_named(qwen, options, param):
    assert refusal(qwen, **options).param == param


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with tool_client(tmp_path_factory.mktemp("tools"), QWEN) as client:
        yield client


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_weights_give_arguments_that_hold(tiny, choice, seed):
    """Every call that is not cut off names a tool and has arguments that its schema describes."""
    given = {"model": "tiny", "messages": QUESTION, "tools": [tool("weather")], "tool_choice": choice}
    answer = tiny.chat.completions.create(**given, max_tokens=300, seed=seed, temperature=1.0)
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


@pytest.mark.parametrize("kind", ["array", "string", "", ["array", "null"], 3])
def test_arguments_that_are_no_object_are_refused(kind: object) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": kind}}}
    with pytest.raises(ApiError) as caught:
        tool_use([tool], None, None)
    assert (caught.value.status, caught.value.param) == (400, "tools[0].function.parameters.type")
    for good in ("object", ["object", "null"], None):
        tool_use([{"type": "function", "function": {"name": "f", "parameters": {"type": good}}}], None, None)


def test_an_empty_type_of_a_tool_is_refused_as_none_is() -> None:
    for kind in ("", None):
        with pytest.raises(ApiError) as caught:
            tool_use([{"type": kind, "function": {"name": "f"}}], None, None)
        assert (caught.value.status, caught.value.param) == (400, "tools[0].type")
