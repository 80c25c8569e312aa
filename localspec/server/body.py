"""From the bytes of a request to a checked body."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from localspec.checks import check_characters, shown
from localspec.errors import InvalidRequest
from localspec.server.faults import ApiError, as_api_error, bad_request, client_gone
from localspec.server.service import Service

T = TypeVar("T", bound=BaseModel)
_MESSAGE = '{"role": "user", "content": "..."}'
EXAMPLES = {"messages": f"[{_MESSAGE}]", "messages[]": _MESSAGE}
"""What a field looks like that was given as something else, by its name without numbers."""
_INDEX = re.compile(r"\[\d+\]")
SMALL = 64 * 1024
"""Bytes. A body up to this size is parsed faster than a thread starts."""


async def read_body(request: Request, kind: type[T], service: Service) -> T:
    """The body as `kind`. Raises `ApiError`: 413 for too many bytes, 400 naming the field otherwise.

    A client that leaves half-way is a 499, and one that still sends when the server stops is a 503.
    """
    try:
        async with service.until_stopped():
            data = await _read(request, service.settings.max_body)
    except ClientDisconnect:
        raise client_gone() from None
    if len(data) <= SMALL:
        return parse(data, kind)
    return await asyncio.to_thread(parse, data, kind)


async def _read(request: Request, max_bytes: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(data)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"The request is larger than {max_bytes} bytes. Shorten it.", code="request_too_large"
    )


def parse(data: bytes, kind: type[T]) -> T:
    """Bytes as `kind`. Raises `ApiError` naming the first field that is not usable."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise _refusal(data, error) from None


def _refusal(data: bytes, error: ValidationError) -> ApiError:
    faults = error.errors(include_url=False, include_context=False, include_input=True)
    first = faults[0]
    if first["type"] == "json_invalid":
        return _unreadable(data, first["msg"].removeprefix("Invalid JSON: "))
    if first["type"] == "model_type" and not first["loc"]:
        return bad_request("The body must be a JSON object.")
    value = json.loads(data)
    places = [_place(value, fault["loc"]) for fault in faults]
    # Of several forms that a field may have, the one that was meant is the one that was right furthest.
    start = len(places[0])
    inside = [place for place in places if place[:start] == places[0]]
    place = max(inside, key=lambda place: [step if isinstance(step, int) else 0 for step in place[start:]])
    there = [fault for fault, where in zip(faults, places, strict=True) if where == place]
    param = _path(place)
    if there[0]["type"] == "missing":
        param = _path([*place, there[0]["loc"][-1]])
        return bad_request(f"{param} is missing.", param, "missing_required_parameter")
    wanted = " or ".join(dict.fromkeys(fault["msg"].removeprefix("Input should be ") for fault in there))
    example = EXAMPLES.get(_INDEX.sub("[]", param))
    shape = "" if example is None else f", such as {example}"
    return bad_request(
        f"{param} is {shown(there[0]['input'])}. It must be {wanted}{shape}.", param, "invalid_type"
    )


def _unreadable(data: bytes, reason: str) -> ApiError:
    """What pydantic cannot read: half a surrogate pair, which JSON can say and no model can be given, or no JSON."""
    try:
        for place, text in _texts(json.loads(data), []):
            name = _path(place) or "The body"
            check_characters(text, name, name=name if place else None)
    except InvalidRequest as error:
        return as_api_error(error)
    except (ValueError, RecursionError):
        pass
    return bad_request(f"The body is not JSON: {reason}.")


Place = list[int | str]


def _texts(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Every text in a JSON value, with its place; a name in an object has the place of the object."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, [*place, index])
    elif isinstance(value, dict):
        for name, item in value.items():
            yield place, name
            yield from _texts(item, [*place, name])


def _place(value: Any, location: Sequence[int | str]) -> Place:
    """Where in the body `location` is: the names of alternatives in it are left out."""
    place: Place = []
    for step in location:
        listed = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if listed or (isinstance(value, dict) and step in value):
            value = value[step]
            place.append(step)
    return place


def _path(place: Place) -> str:
    """As `messages[0].content`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")
