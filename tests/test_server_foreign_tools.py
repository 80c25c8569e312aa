"""Tools that cannot be called here, choices among tools, and schemas that cannot be enforced whole."""

from __future__ import annotations

import json
import logging
from typing import Any

import jsonschema
import openai
import pytest

from .scripted_llm import QWEN, ScriptedLLM
from .serverkit import ready, running, tool_client
from .tinygguf import CHATML

QUESTION = [{"role": "user", "content": "Weather in Ulm?"}]
AHEAD = {"type": "string", "pattern": "^(?=U)Ulm$"}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}},
    "required": ["city"],
    "additionalProperties": False,
}
FOREIGN = [
    {"type": "web_search"},
    {"type": "custom", "custom": {"name": "patch"}},
    {"type": "namespace", "name": "crm", "tools": []},
    {"type": "local_shell"},
    {"type": "image_generation"},
]
CALL = '{"name": "weather", "arguments": {"city": "Ulm"}}'


def function(name: str, parameters: Any = CITY, **fields: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters, **fields}


class Api:
    """One of the two APIs, so that a test can go through both. says: what the model answers next."""

    def __init__(self, client: openai.OpenAI, llm: ScriptedLLM, *, responses: bool) -> None:
        self.client, self.llm, self.responses = client, llm, responses

    def says(self, *answers: str) -> None:
        self.llm.answers.clear()
        self.llm.answers.extend(answers)
        self.llm.prompts.clear()
        self.llm.calls.clear()

    def tools(self, *functions: dict[str, Any]) -> list[dict[str, Any]]:
        """In the form of this API; what has a type is no function."""
        return [self._tool(given) for given in functions]

    def _tool(self, given: dict[str, Any]) -> dict[str, Any]:
        if "type" in given:
            return given
        return {"type": "function", **given} if self.responses else {"type": "function", "function": given}

    def allowed(self, mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
        given = {"mode": mode, "tools": self.tools(*tools)}
        return {"type": "allowed_tools", **(given if self.responses else {"allowed_tools": given})}

    def ask(self, **options: Any) -> Any:
        if self.responses:
            return self.client.responses.create(**{"model": "tiny", "input": "Weather in Ulm?"} | options)
        return self.client.chat.completions.create(**{"model": "tiny", "messages": QUESTION} | options)

    def called(self, answer: Any) -> list[tuple[str, Any]]:
        if self.responses:
            calls = [item for item in answer.output if item.type == "function_call"]
        else:
            calls = [call.function for call in answer.choices[0].message.tool_calls or []]
        return [(call.name, json.loads(call.arguments)) for call in calls]

    def refused(self, **options: Any) -> openai.BadRequestError:
        self.says("never")
        with pytest.raises(openai.BadRequestError) as caught:
            self.ask(**options)
        return caught.value


def warnings_of(answer: Any) -> list[tuple[str, str]]:
    return [(item["code"], item["param"]) for item in answer.model_extra.get("warnings", ())]


@pytest.fixture(scope="module")
def llm():
    return ScriptedLLM(QWEN)


@pytest.fixture(scope="module")
def client(llm):
    with running(lambda: llm) as server, ready(server).client() as made:
        yield made


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def api(request, client, llm):
    return Api(client, llm, responses=request.param)


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_tools_of_other_types_are_passed_over_with_a_warning(api, choice, caplog):
    caplog.set_level(logging.INFO, "localspec.server")
    api.says(CALL if choice == "required" else "Sunny.")
    answer = api.ask(tools=api.tools(*FOREIGN, function("weather")), tool_choice=choice)
    assert warnings_of(answer) == [("tool_passed_over", f"tools[{index}]") for index in range(5)]
    messages = [item["message"] for item in answer.model_extra["warnings"]]
    assert "'web_search'" in messages[0]
    assert set(messages) <= {record.getMessage() for record in caplog.records}
    assert ("weather" in api.llm.prompts[0]) == (choice != "none")
    assert "web_search" not in api.llm.prompts[0]
    assert api.called(answer) == ([("weather", {"city": "Ulm"})] if choice == "required" else [])


def test_an_answer_without_anything_passed_over_has_no_warnings(api):
    api.says("Sunny.")
    assert "warnings" not in api.ask(tools=api.tools(function("weather"))).model_extra


def test_a_list_of_such_tools_alone_is_answered_without_tools(api):
    api.says("Sunny.")
    assert len(warnings_of(api.ask(tools=FOREIGN))) == 5
    assert "<tools>" not in api.llm.prompts[0]
    error = api.refused(tools=FOREIGN, tool_choice="required")
    assert (error.param, "no function that can be called" in error.message) == ("tool_choice", True)


def test_a_stream_has_the_warnings_in_its_first_event(api):
    api.says("Sunny.")
    events = list(api.ask(tools=FOREIGN[:1], stream=True))
    if api.responses:
        assert [len(warnings_of(event.response)) for event in (events[0], events[1], events[-1])] == [1, 1, 1]
    else:
        assert [len(warnings_of(event)) for event in events] == [1] + [0] * (len(events) - 1)
        api.says("Sunny.", "Rainy.")
        events = list(api.ask(tools=FOREIGN[:1], stream=True, n=2))
        assert [bool(warnings_of(event)) for event in events] == [True] + [False] * (len(events) - 1)
        assert {event.choices[0].index for event in events} == {0, 1}


def test_a_template_without_tools_answers_where_none_can_be_called():
    llm = ScriptedLLM(CHATML, "Sunny.")
    with running(lambda: llm) as server, ready(server).client() as client:
        assert warnings_of(Api(client, llm, responses=False).ask(tools=FOREIGN[:1]))


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_alone_are_told_and_called(api, mode):
    tools = api.tools(function("weather"), function("later"), function("never"))
    choice = api.allowed(mode, {"name": "weather"}, {"name": "later"})
    api.says(CALL if mode == "required" else f"<tool_call>{CALL}</tool_call>")
    answer = api.ask(tools=tools, tool_choice=choice)
    assert api.called(answer) == [("weather", {"city": "Ulm"})]
    assert "later" in api.llm.prompts[0]
    assert "never" not in api.llm.prompts[0]
    schema = api.llm.calls[0].get("json_schema")
    assert (schema is not None) == (mode == "required")
    if schema:
        for name in ("weather", "later", "never"):
            value = {"name": name, "arguments": {"city": "Ulm"}}
            assert jsonschema.Draft202012Validator(schema).is_valid(value) == (name != "never")
    api.says('<tool_call>{"name": "never", "arguments": {}}</tool_call>')
    if mode == "auto":
        assert api.called(api.ask(tools=tools, tool_choice=choice)) == []


def test_allowed_tools_of_other_types_are_passed_over(api):
    tools = api.tools(function("weather"), FOREIGN[0])
    api.says("Sunny.", CALL, "Sunny.")
    choice = api.allowed("auto", FOREIGN[0])
    place = "tool_choice.tools[0]" if api.responses else "tool_choice.allowed_tools.tools[0]"
    assert warnings_of(api.ask(tools=tools, tool_choice=choice))[1] == ("tool_passed_over", place)
    assert "<tools>" not in api.llm.prompts[0]
    answer = api.ask(tools=tools, tool_choice=api.allowed("required", FOREIGN[0], {"name": "weather"}))
    assert api.called(answer) == [("weather", {"city": "Ulm"})]
    assert api.refused(tools=tools, tool_choice=api.allowed("required", FOREIGN[0])).param == "tool_choice"


@pytest.mark.parametrize(
    ("choice", "what"),
    [
        ({"type": "web_search"}, "'web_search'"),
        ({"type": "custom", "name": "patch", "custom": {"name": "patch"}}, "'custom'"),
        (
            {"type": "allowed_tools", "mode": "none", "tools": [{"type": "function", "name": "weather"}]},
            "mode",
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": ["weather"]}, "tools"),
        ({"type": "allowed_tools", "mode": "auto"}, "tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "all"}}, "allowed_tools.mode"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]}, "'b'"),
        ({"type": "function"}, "unknown object"),
        ({"name": "weather"}, "unknown object"),
    ],
)
def test_choices_that_cannot_be_kept_are_refused_by_name(api, choice, what):
    error = api.refused(tools=api.tools(function("weather"), FOREIGN[0]), tool_choice=choice)
    assert error.param == "tool_choice"
    assert what in error.message


BROKEN = {"type": "object", "properties": {"x": AHEAD, "n": {"type": "integer"}}, "required": ["x", "n"]}


def test_of_a_schema_that_cannot_be_enforced_the_rest_is(api):
    api.says(CALL)
    answer = api.ask(tools=api.tools(function("weather"), function("a", BROKEN)), tool_choice="required")
    place = f"tools[1].{'' if api.responses else 'function.'}parameters.properties.x.pattern"
    (warning,) = answer.model_extra["warnings"]
    assert (warning["code"], warning["param"]) == ("schema_not_enforced", place)
    assert place in warning["message"]
    assert "look-ahead" in warning["message"]
    validator = jsonschema.Draft202012Validator(api.llm.calls[0]["json_schema"])
    assert validator.is_valid({"name": "weather", "arguments": {"city": "Ulm"}})
    assert validator.is_valid({"name": "a", "arguments": {"x": "Bonn", "n": 1}})
    assert not validator.is_valid({"name": "a", "arguments": {"x": "Bonn", "n": "1"}})
    assert not validator.is_valid({"name": "a", "arguments": {"x": 3, "n": 1}})
    assert '"pattern"' in api.llm.prompts[0], "the model is told of it all the same"


def test_types_that_are_none_are_named_and_the_rest_holds(api):
    """Google's schemas write them in capitals."""
    parameters = {"type": "OBJECT", "properties": {"n": {"type": "integer"}, "x": {"type": "STRING"}}}
    api.says('{"name": "a", "arguments": {"n": 1}}')
    answer = api.ask(tools=api.tools(function("a", parameters)), tool_choice="required")
    assert sorted(param.rpartition("parameters")[2] for _, param in warnings_of(answer)) == [
        ".properties.x.type",
        ".type",
    ]
    validator = jsonschema.Draft202012Validator(api.llm.calls[0]["json_schema"])
    assert validator.is_valid({"name": "a", "arguments": {"n": 1, "x": 2}})
    assert not validator.is_valid({"name": "a", "arguments": {"n": "1"}})
    assert not validator.is_valid({"name": "a", "arguments": 1})


def test_such_a_schema_is_of_no_concern_where_no_call_is_forced(api):
    api.says("Sunny.")
    answer = api.ask(tools=api.tools(function("a", BROKEN, strict=True)))
    assert "warnings" not in answer.model_extra
    assert "json_schema" not in api.llm.calls[0]


def test_a_strict_function_that_cannot_be_enforced_is_refused(api):
    tools = api.tools(function("weather"), function("a", BROKEN, strict=True))
    error = api.refused(tools=tools, tool_choice="required")
    assert error.param == f"tools[1].{'' if api.responses else 'function.'}parameters.properties.x.pattern"
    choice = {"type": "function", "name": "weather", "function": {"name": "weather"}}
    api.says(CALL)
    assert api.called(api.ask(tools=tools, tool_choice=choice)), "the other one still works"


@pytest.mark.parametrize("kind", ["password", "int64", "binary", "uri-reference", "regex", "x-own"])
def test_unknown_formats_are_annotations(api, kind):
    parameters = {**CITY, "properties": {"city": {"type": "string", "format": kind}}}
    api.says(CALL)
    answer = api.ask(tools=api.tools(function("weather", parameters, strict=True)), tool_choice="required")
    assert api.called(answer) == [("weather", {"city": "Ulm"})]
    assert "warnings" not in answer.model_extra


def test_beside_a_form_of_the_answer_each_fault_is_named_where_it_stands(client, llm):
    api = Api(client, llm, responses=False)
    tools = api.tools(function("a", BROKEN))
    api.says("[1]")
    answer = api.ask(tools=tools, extra_body={"json_schema": {"type": "array"}})
    assert warnings_of(answer) == [
        ("schema_not_enforced", "tools[0].function.parameters.properties.x.pattern")
    ]
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": BROKEN}}
    error = api.refused(tools=tools, response_format=form)
    assert error.param == "response_format"
    assert "properties.x.pattern" in error.message
    assert api.refused(tools=tools, extra_body={"json_schema": BROKEN}).param == "json_schema"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with tool_client(tmp_path_factory.mktemp("tools"), QWEN) as client:
        yield client


@pytest.mark.parametrize(
    ("part", "place"),
    [
        (AHEAD, ".properties.b.pattern"),
        ({"type": "string", "pattern": "("}, ".properties.b.pattern"),
        ({"not": {"type": "string"}}, ".properties.b.not"),
        ({"$ref": "#/nowhere"}, ".properties.b.$ref"),
    ],
)
def test_a_real_engine_calls_a_function_that_cannot_be_enforced_whole(tiny, part, place):
    parameters = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}, "b": part},
        "required": ["a"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": function("f", parameters)}]
    answer = tiny.chat.completions.create(
        model="tiny", messages=QUESTION, tools=tools, tool_choice="required", max_tokens=300, seed=1
    )
    assert warnings_of(answer) == [("schema_not_enforced", f"tools[0].function.parameters{place}")]
    if answer.choices[0].finish_reason == "tool_calls":
        (call,) = answer.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["a"] in (1, 2)


def test_a_fault_of_response_format_is_named_with_its_place(tiny):
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": BROKEN}}
    with pytest.raises(openai.BadRequestError) as caught:
        tiny.chat.completions.create(model="tiny", messages=QUESTION, response_format=form)
    assert caught.value.param == "response_format"
    assert "properties.x.pattern: " in caught.value.message
