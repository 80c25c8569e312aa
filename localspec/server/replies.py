"""JSON and server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from localspec.server.faults import ApiError

DONE = "data: [DONE]\n\n"


class Json(Response):
    """A JSON value. ASCII only: half a surrogate pair of a request may come back in an error's sentence."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The JSON text, in ASCII bytes."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def refusal(error: ApiError) -> Json:
    """The answer to a request that is refused."""
    return Json(error.body(), status_code=error.status, headers=error.headers)


def event(data: dict[str, Any]) -> str:
    """One server-sent event, with its type as a line of its own where the data has one."""
    name = f"event: {data['type']}\n" if "type" in data else ""
    return f"{name}data: {json.dumps(data, allow_nan=False, separators=(',', ':'))}\n\n"


class EventStream(Response):
    """Server-sent events. The maker of the texts watches whether the client leaves, and cleans up."""

    media_type = "text/event-stream"

    def __init__(self, texts: AsyncIterator[str]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._texts = texts

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for text in self._texts:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            # While texts are ready and the client takes them, nothing above gives way to /health or a hang-up.
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
