"""The ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from localspec import __version__
from localspec.llm import LLM
from localspec.server.about import about_routes, token_routes
from localspec.server.describe import describe
from localspec.server.faults import ApiError, as_api_error
from localspec.server.guard import Guard
from localspec.server.replies import refusal
from localspec.server.responses import response_routes
from localspec.server.routes import answering_routes
from localspec.server.service import Service
from localspec.server.settings import Settings

log = logging.getLogger("localspec.server")
Failed = Callable[[BaseException], None]


def create_app(
    load: Callable[[], LLM],
    settings: Settings,
    failed: Failed = lambda error: None,
) -> FastAPI:
    """The application; `app.state.service` is its `Service`.

    load: called in a thread when the application starts; until it returns, requests are refused with 503, which says
    how far it has come. A stop ends it at the next stage, tensor or measuring pass. The engine is closed when the
    application stops. failed: told of an error of `load`.
    """
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(_load(service, load, failed))
        yield
        service.refuse()
        if not loading.done():  # later it would set the flags of answers
            service.end_load()
        await loading
        await service.close()

    app = FastAPI(
        title="localspec", version=__version__, lifespan=lifespan,
        docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.state.service = service
    for router in (
        answering_routes(service),
        response_routes(service),
        about_routes(service),
        token_routes(service),
    ):
        app.include_router(router)
    _handle_errors(app)
    describe(app)
    app.add_middleware(Guard, service=service)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors), allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"], expose_headers=["Retry-After"],
        )  # fmt: skip
    return app


async def _load(service: Service, load: Callable[[], LLM], failed: Failed) -> None:
    try:
        await service.load(load)
    except Exception as error:
        failed(error)


def _handle_errors(app: FastAPI) -> None:
    async def refused(_request: Request, error: Exception) -> Response:
        return refusal(as_api_error(error))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return refusal(_http_error(request, error))

    async def unexpected(_request: Request, error: Exception) -> Response:
        return refusal(as_api_error(error))

    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)


def _http_error(request: Request, error: HTTPException) -> ApiError:
    """What the router refuses: a route or a method that does not exist."""
    where = f"{request.method} {request.url.path}"[:200]
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.NOT_FOUND:
        return ApiError(404, f"There is no endpoint {where}.", code="unknown_url")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{where} is not possible. Use {headers.get('allow', headers.get('Allow', 'POST'))}."
        return ApiError(405, message, code="method_not_allowed", headers=headers)
    return ApiError(error.status_code, str(error.detail), headers=headers)
