"""Where schemas stand in a JSON schema, and what may be changed there without changing what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Place = tuple[str | int, ...]
"""The keys and indices that lead to a part of a schema."""
FORMATS = (
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
)  # fmt: skip
"""Formats that the library enforces. It refuses all others, which by JSON Schema's own rules are annotations."""
DEFINITIONS = "$defs"
_ONE = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LISTED = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = (DEFINITIONS, "definitions", "dependentSchemas", "patternProperties", "properties")
_WORD = re.compile(r"[A-Za-z_$][\w$-]*")


def inner_places(schema: Mapping[str, Any]) -> Iterator[Place]:
    """Where the schemas stand that `schema` holds itself, as places in it."""
    for keyword, value in schema.items():
        if keyword in _ONE and isinstance(value, Mapping):
            yield (keyword,)
        elif keyword in _LISTED and isinstance(value, list | tuple):
            yield from ((keyword, index) for index, item in enumerate(value) if isinstance(item, Mapping))
        elif keyword in _NAMED and isinstance(value, Mapping):
            yield from ((keyword, name) for name, item in value.items() if isinstance(item, Mapping))


def part_at(schema: Any, place: Place) -> Any:
    """The part of `schema` at `place`. Raises KeyError, IndexError or TypeError where there is none."""
    for key in place:
        schema = schema[key]
    return schema


def changed_at(schema: Any, place: Place, change: Callable[[Any], Any]) -> Any:
    """A copy of `schema` with `change(part)` in the place of the part at `place`."""
    if not place:
        return change(schema)
    key, *rest = place
    inner = changed_at(schema[key], tuple(rest), change)
    if isinstance(schema, Mapping):
        return {**schema, key: inner}
    return [inner if index == key else item for index, item in enumerate(schema)]


def without_unknown_formats(schema: Any) -> Any:
    """`schema` without formats that cannot be enforced, in it and in every schema it holds."""
    if not isinstance(schema, Mapping):
        return schema
    return {
        keyword: _held(keyword, value, without_unknown_formats)
        for keyword, value in schema.items()
        if keyword != "format" or value in FORMATS
    }


def _held(keyword: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """The value of a keyword with `change` applied to the schemas that stand in it."""
    if keyword in _LISTED and isinstance(value, list | tuple):
        return [change(item) for item in value]
    if keyword in _NAMED and isinstance(value, Mapping):
        return {name: change(item) for name, item in value.items()}
    return change(value) if keyword in _ONE else value


def moved(schema: Any, place: str) -> Any:
    """`schema` as it must be written inside another one, at `place`: its references to itself get that prefix."""
    if isinstance(schema, Mapping):
        return {
            name: f"{place}{value[1:]}"
            if name == "$ref" and isinstance(value, str) and value.startswith("#")
            else moved(value, place)
            for name, value in schema.items()
        }
    return [moved(item, place) for item in schema] if isinstance(schema, list | tuple) else schema


def path_of(place: Place) -> str:
    """`place` as one writes it: `properties.city.anyOf[0].pattern`."""
    path = ""
    for key in place:
        if isinstance(key, str) and _WORD.fullmatch(key):
            path += f".{key}" if path else key
        else:
            path += f"[{json.dumps(key)}]"
    return path
