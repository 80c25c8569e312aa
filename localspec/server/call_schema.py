"""JSON schemas of tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.grammar.schema_places import DEFINITIONS, moved

Schema = dict[str, Any]


def forced_schema(functions: Sequence[Mapping[str, Any]], key: str, *, listed: bool, several: bool) -> Schema:
    """The schema of an answer that calls one of `functions` or, with `listed`, of a list of calls.

    functions: objects with `name` and `parameters`. key: the member that holds the arguments.
    several: the list may hold more than one call.
    """
    calls, definitions = _calls(functions, key)
    if listed:
        most = {} if several else {"maxItems": 1}
        return {"type": "array", "items": _one_of(calls), "minItems": 1, **most, DEFINITIONS: definitions}
    return {**_one_of(calls), DEFINITIONS: definitions}


def either_schema(functions: Sequence[Mapping[str, Any]], key: str, answer: Any) -> Schema:
    """The schema of an answer that either matches the schema `answer` or calls one of `functions`."""
    calls, definitions = _calls(functions, key)
    definitions["answer"] = moved(answer, f"#/{DEFINITIONS}/answer")
    return {**_one_of([{"$ref": f"#/{DEFINITIONS}/answer"}, *calls]), DEFINITIONS: definitions}


def _calls(functions: Sequence[Mapping[str, Any]], key: str) -> tuple[list[Schema], Schema]:
    """A schema for a call of each function, and the definitions they refer to."""
    calls: list[Schema] = []
    definitions: Schema = {}
    for index, function in enumerate(functions):
        place = f"arguments{index}"
        definitions[place] = {"type": "object", **moved(function["parameters"], f"#/{DEFINITIONS}/{place}")}
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": function["name"]},
                    key: {"$ref": f"#/{DEFINITIONS}/{place}"},
                },
                "required": ["name", key],
                "additionalProperties": False,
            }
        )
    return calls, definitions


def _one_of(schemas: list[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
