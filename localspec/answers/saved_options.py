"""The options of a saved conversation: what of them JSON can hold, and how they meet those given at its load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from localspec.answers.request import AnswerOptions
from localspec.checks import as_integer, check_names, shown
from localspec.decoding.params import SamplingParams
from localspec.errors import InvalidRequest

_SAMPLING = frozenset(field.name for field in fields(SamplingParams))
_FUNCTIONS = "logits_processors"
"""Never saved; their name is, so that a load can say that they are missing."""


def packed_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of answers, ready for JSON. Raises `InvalidRequest` for one that no answer could have."""
    check_names(options, AnswerOptions.__annotations__)
    packed: dict[str, Any] = {}
    for name, value in options.items():
        if name == _FUNCTIONS:
            packed |= {name: None} if value else {}
        elif name in _SAMPLING:
            packed[name] = _packed_field(SamplingParams(**{name: value}), name)
        elif name == "params" and isinstance(value, SamplingParams):
            packed[name] = {each: _packed_field(value, each) for each in sorted(_SAMPLING)}
        else:
            packed[name] = _as_json(name, value)
    return packed


def unpacked_options(packed: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a file, None in the place of functions. Raises `InvalidRequest` or `TypeError` where damaged."""
    check_names(packed, AnswerOptions.__annotations__)
    options: dict[str, Any] = {}
    for name, value in packed.items():
        if name in _SAMPLING:
            options[name] = _unpacked_field(name, value)
            SamplingParams(**{name: options[name]})
        elif name == "params" and value is not None:
            options[name] = SamplingParams(
                **{each: _unpacked_field(each, one) for each, one in value.items()}
            )
        else:
            options[name] = value
    return options


def missing_functions(saved: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """A sentence about functions that the conversation had and now has not, or ""."""
    if _FUNCTIONS not in saved or _FUNCTIONS in given:
        return ""
    return f" Its {_FUNCTIONS} are functions, which no file holds: its answers go without them until they are given."


def overridden(saved: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The saved options with those given in their place, which also end what could not hold beside them."""
    ended = {*given, _FUNCTIONS}
    if "params" in given:
        ended |= _SAMPLING
    if {"grammar", "json_schema"} & given.keys():
        ended |= {"grammar", "json_schema"}
    return {**{name: value for name, value in saved.items() if name not in ended}, **given}


def _packed_field(params: SamplingParams, name: str) -> Any:
    value = getattr(params, name)
    return [list(pair) for pair in value.items()] if name == "logit_bias" else value


def _unpacked_field(name: str, value: Any) -> Any:
    return dict(value) if name == "logit_bias" else value


def _as_json(name: str, value: Any) -> Any:
    """What JSON makes of it."""
    try:
        return json.loads(json.dumps(value, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{name} is {shown(value)}, which cannot be saved.",
            "Give it as text, numbers, lists and dicts.",
            name=name,
        ) from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if (number := as_integer(value)) is not None:
        return number
    return list(value)  # type: ignore[call-overload]  # what has no items is refused by it
