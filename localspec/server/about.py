"""Endpoints that describe the server and its model, and turn text into token ids and back."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from localspec import __version__
from localspec.llm import LLM
from localspec.server.body import read_body
from localspec.server.describe import endpoint, takes
from localspec.server.faults import as_api_error
from localspec.server.metrics import CONTENT_TYPE
from localspec.server.replies import Json
from localspec.server.routes import check_model
from localspec.server.schemas import DetokenizeRequest, TokenizeRequest
from localspec.server.service import Service
from localspec.text.messages import checked_text


def about_routes(service: Service) -> APIRouter:
    """Routes for /, /health, /models, /metrics and /props."""
    router, settings = APIRouter(), service.settings
    model = {"id": settings.name, "object": "model", "created": int(time.time()), "owned_by": "localspec"}

    @endpoint(router, "GET", "/")
    async def root() -> Response:
        """Version and model, as plain text."""
        return PlainTextResponse(f"localspec {__version__}: {settings.name}. The API is under /v1.\n")

    @endpoint(router, "GET", "/health", responses={503: {"description": "Loading or stopping."}})
    async def health() -> Response:
        """200 once the model is loaded, 503 while it is loading or the server stops."""
        _ = service.llm
        return Json({"status": "ok"})

    @endpoint(router, "GET", "/models", openai=True)
    async def models() -> Response:
        """The list of models: the one that this server runs."""
        return Json({"object": "list", "data": [model]})

    @endpoint(
        router, "GET", "/models/{name:path}", openai=True,
        responses={404: {"description": "There is no such model."}},
    )  # fmt: skip
    async def one_model(name: str) -> Response:
        """The model of that name."""
        check_model(name, settings)
        return Json(model)

    @endpoint(router, "GET", "/metrics")
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(service.metrics_text(), media_type=CONTENT_TYPE)

    @endpoint(router, "GET", "/props", responses={503: {"description": "Loading or stopping."}})
    async def props() -> Response:
        """Default sampling, context size, chat template and engine settings, in the form of llama.cpp's server."""
        return Json(await _in_thread(_props, service.llm, service))

    return router


def token_routes(service: Service) -> APIRouter:
    """Routes for /tokenize and /detokenize."""
    router = APIRouter()

    @endpoint(router, "POST", "/tokenize", **takes(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """The token ids of a text."""
        body = await read_body(request, TokenizeRequest, service)
        return Json(await _in_thread(_tokenize, service.llm, body))

    @endpoint(router, "POST", "/detokenize", **takes(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        body = await read_body(request, DetokenizeRequest, service)
        return Json({"content": await _in_thread(service.llm.detokenize, body.tokens)})

    return router


async def _in_thread(function: Any, *arguments: Any) -> Any:
    try:
        return await asyncio.to_thread(function, *arguments)
    except Exception as error:
        raise as_api_error(error, {"text": "content", "prompt": "tokens", "ids": "tokens"}) from error


def _tokenize(llm: LLM, body: TokenizeRequest) -> dict[str, Any]:
    with llm.using() as engine:
        ids = engine.vocab.tokenize(
            checked_text(body.content, "The content", name="content"),
            parse_special=body.parse_special is not False,
            add_bos=bool(body.add_special),
        )
    if not body.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": token, "piece": _piece(llm.token_bytes([token]))} for token in ids]}


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _props(llm: LLM, service: Service) -> dict[str, Any]:
    params = service.settings.params
    with llm.using() as engine:
        n_ctx, path, vocab = engine.target.n_ctx, engine.target.weights.path, engine.vocab
        build = engine.target.weights.build
        bos, eos, source = vocab.bos_text, vocab.eos_text, engine.template.source or ""
    return {
        "default_generation_settings": {
            "n_ctx": n_ctx,
            "params": {
                "temperature": params.temperature,
                "top_k": params.top_k,
                "top_p": params.top_p,
                "min_p": params.min_p,
                "typical_p": params.typical_p,
                "top_n_sigma": params.top_n_sigma,
                "repeat_penalty": params.repeat_penalty,
                "repeat_last_n": params.repeat_last_n,
                "frequency_penalty": params.frequency_penalty,
                "presence_penalty": params.presence_penalty,
                "max_tokens": params.max_tokens,
                "seed": params.seed,
            },
        },
        "total_slots": llm.parallel,
        "model_alias": service.settings.name,
        "model_path": str(path),
        "chat_template": source,
        "bos_token": bos,
        "eos_token": eos,
        "build_info": f"localspec {__version__}, {build}",
        "drafting": llm.drafting,
        "settings": llm.settings,
    }
