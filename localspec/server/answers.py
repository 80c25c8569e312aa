"""The way of every request for answers, whatever form they take: queue, stream or collect, count, refuse."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from fastapi import Request, Response

from localspec.llm import LLM
from localspec.request import Chunk, Completion
from localspec.server.faults import ApiError, as_api_error
from localspec.server.job import Start
from localspec.server.options import field_names, wants_stream
from localspec.server.replies import EventStream, Json, event
from localspec.server.schemas import Sampling
from localspec.server.service import Service
from localspec.server.watched import Watched

log = logging.getLogger("localspec.server")
Payload = dict[str, Any]


class Form(Protocol):
    """How answers look to the client: made by `prepare`, in its thread."""

    @property
    def starts(self) -> Sequence[Start]:
        """Begin the answers, one after the other."""
        ...

    def opening(self, index: int) -> list[Payload]:
        """Events before the first chunk of an answer."""
        ...

    def events(self, index: int, chunk: Chunk) -> list[Payload]:
        """Events for one chunk."""
        ...

    def closing(self) -> list[Payload]:
        """Events after all answers."""
        ...

    def failure(self, error: ApiError) -> Payload:
        """The event for an error after the first chunk, which ends the stream."""
        ...

    @property
    def done(self) -> str:
        """What ends a stream."""
        ...

    def whole(self, chunks: dict[int, list[Chunk]]) -> Payload:
        """The answer to a request that did not ask for a stream."""
        ...


async def respond(
    service: Service,
    request: Request,
    prepare: Callable[[LLM], Form],
    body: Sampling,
) -> Response:
    """Answer one request.

    The status is that of the first chunk: whatever fails before it is no 200. Raises `ApiError`.
    """
    form: list[Form] = []
    stream = wants_stream(body)

    def starts(llm: LLM) -> Sequence[Start]:
        form.append(prepare(llm))
        return form[0].starts

    watched = Watched(service, request.receive)
    try:
        await watched.start(starts)
        if not stream:
            return Json(form[0].whole(await _collect(service, watched)))
        first = await anext(watched)
    except Exception as error:
        await watched.close()
        raise as_api_error(error, field_names(body)) from error
    except BaseException:
        await watched.close()
        raise
    finally:
        if not stream:
            await watched.close()
    return EventStream(_events(service, form[0], watched, first))


async def _collect(service: Service, watched: Watched) -> dict[int, list[Chunk]]:
    chunks: dict[int, list[Chunk]] = {}
    async for index, chunk in watched:
        chunks.setdefault(index, []).append(chunk)
        _count(service, chunk.completion)
    return chunks


async def _events(
    service: Service, form: Form, watched: Watched, first: tuple[int, Chunk]
) -> AsyncIterator[str]:
    """An error after the first chunk is an event of its own, and nothing follows."""
    opened: set[int] = set()
    try:
        async with watched:
            async for index, chunk in _with_first(first, watched):
                _count(service, chunk.completion)
                payloads = [] if index in opened else form.opening(index)
                opened.add(index)
                for payload in [*payloads, *form.events(index, chunk)]:
                    yield event(payload)
            for payload in form.closing():
                yield event(payload)
            yield form.done
    except Exception as error:
        yield event(form.failure(as_api_error(error)))


async def _with_first(
    first: tuple[int, Chunk], rest: AsyncIterator[tuple[int, Chunk]]
) -> AsyncIterator[tuple[int, Chunk]]:
    yield first
    async for item in rest:
        yield item


def _count(service: Service, completion: Completion | None) -> None:
    if completion is not None:
        service.metrics.add(completion.stats)
