"""Who may ask: API key and web origins, checked before anything is read. Counts every response."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.server.faults import ApiError
from localspec.server.replies import refusal
from localspec.server.service import Service

OPEN_PATHS = frozenset(("/", "/health"))
"""For supervisors, which have no key."""


class Guard:
    """ASGI middleware.

    A web page that was not allowed by `cors` is refused, even though its browser would hide the answer from it: any
    page could otherwise keep this machine busy, or read answers by having its own name point to this address.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                self._service.metrics.count(getattr(route, "path", "other"), message["status"])
            await send(message)

        error = self._fault(scope["path"], Headers(scope=scope))
        if error is not None:
            await refusal(error)(scope, receive, counting)
        else:
            await self._app(scope, receive, counting)

    def _fault(self, path: str, headers: Headers) -> ApiError | None:
        origin, allowed = headers.get("origin"), self._service.settings.cors
        if origin is not None and "*" not in allowed and origin not in allowed:
            return ApiError(
                403,
                f"Pages of {origin[:100]} may not use this server. Whoever runs it can allow them (cors).",
                code="origin_not_allowed",
            )
        key = self._service.settings.api_key
        if key is None or path in OPEN_PATHS:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip(" \t").encode("latin-1"), key.encode()
        ):
            return None
        return ApiError(
            401,
            "The API key is missing or wrong. Send it as Authorization: Bearer KEY.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
