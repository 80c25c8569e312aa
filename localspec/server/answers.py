"""What every request for answers goes through, whatever its format: queue, stream or collect, count, refuse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, Protocol

from fastapi import Request, Response

from localspec.answers.request import Chunk, Completion
from localspec.llm import LLM
from localspec.server.bounded_job import BoundedJob
from localspec.server.faults import ApiError, as_api_error
from localspec.server.options import field_names, wants_stream
from localspec.server.replies import EventStream, Json, event
from localspec.server.schemas import Sampling
from localspec.server.service import Service, Startable

log = logging.getLogger("localspec.server")
Payload = dict[str, Any]


class AnswerFormat(Startable, Protocol):
    """How answers look to the client. Payloads are objects, ready for JSON."""

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
        """The text that ends a stream, or ""; sent as it is."""
        ...

    def whole(self, chunks: dict[int, list[Chunk]]) -> Payload:
        """The answer to a request that did not ask for a stream."""
        ...


async def respond(
    service: Service,
    request: Request,
    prepare: Callable[[LLM], AnswerFormat],
    body: Sampling,
) -> Response:
    """Answer one request. prepare: makes the format, in a thread, and raises for what cannot be answered.

    What fails before the first chunk is refused with its own status instead of 200. Raises `ApiError`.
    """
    stream, handed_over = wants_stream(body), False
    bounded = BoundedJob(service, request.receive)
    try:
        answer_format = await bounded.start(prepare, body.priority or 0)
        if not stream:
            chunks = await _collect(service, bounded)
            # The log-probabilities of a long answer take longer to write than /health may wait.
            return Json(await asyncio.to_thread(answer_format.whole, chunks))
        response = EventStream(_events(service, answer_format, bounded, await anext(bounded)))
        handed_over = True
        return response
    except Exception as error:
        raise _refused(error, field_names(body)) from error
    finally:
        if not handed_over:
            await bounded.close()


async def _collect(service: Service, bounded: BoundedJob) -> dict[int, list[Chunk]]:
    chunks: dict[int, list[Chunk]] = {}
    async for index, chunk in bounded:
        chunks.setdefault(index, []).append(chunk)
        _count(service, chunk.completion)
    return chunks


async def _events(
    service: Service, answer_format: AnswerFormat, bounded: BoundedJob, first: tuple[int, Chunk]
) -> AsyncIterator[str]:
    """An error after the first chunk is an event of its own, and nothing follows."""
    opened: set[int] = set()
    try:
        async with bounded:
            async for index, chunk in _with_first(first, bounded):
                _count(service, chunk.completion)
                payloads = [] if index in opened else answer_format.opening(index)
                opened.add(index)
                for payload in [*payloads, *answer_format.events(index, chunk)]:
                    yield event(payload)
            for payload in answer_format.closing():
                yield event(payload)
            yield answer_format.done
    except Exception as error:
        yield event(answer_format.failure(_refused(error)))


async def _with_first(
    first: tuple[int, Chunk], rest: AsyncIterator[tuple[int, Chunk]]
) -> AsyncIterator[tuple[int, Chunk]]:
    yield first
    async for item in rest:
        yield item


def _count(service: Service, completion: Completion | None) -> None:
    """Raises `ApiError` for an answer that `LLM.cancel` ended: what there is of it must not pass for the whole."""
    if completion is None:
        return
    service.metrics.add(completion.stats)
    if completion.finish_reason == "cancelled":
        raise ApiError(500, "The answer was cancelled.", kind="server_error", code="cancelled")


def _refused(error: Exception, names: dict[str, str] | None = None) -> ApiError:
    refused = as_api_error(error, names)
    if refused.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("an answer failed: %s", refused.message, exc_info=error)
    return refused
