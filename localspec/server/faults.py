"""What goes wrong, as OpenAI's error object."""

from __future__ import annotations

import logging
from typing import Any

from localspec.errors import (
    EngineClosed,
    InvalidRequest,
    LocalspecError,
    PromptTooLong,
    TemplateError,
)

log = logging.getLogger("localspec.server")
INVALID = "invalid_request_error"
Warnings = tuple[dict[str, Any], ...]
"""What an answer leaves out of its request, as `warning` makes them."""
UNAVAILABLE = "unavailable_error"
RETRY_SECONDS = 5
GONE = 499
"""Status of a request whose client left: for the metrics, since nobody reads it."""


class ApiError(Exception):
    """A refusal: HTTP status and OpenAI's fields.

    param: the field at fault, such as `messages[0].content`. code: a word for programs. facts: numbers for them,
    beside OpenAI's fields.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.kind, self.param, self.code = kind, param, code
        self.headers, self.facts = headers or {}, facts or {}

    def body(self) -> dict[str, Any]:
        """OpenAI's error object, ready for JSON."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": {**error, **self.facts}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400. param: the field at fault. code: a word for programs."""
    return ApiError(400, message, param=param, code=code)


def warning(message: str, param: str, code: str) -> dict[str, Any]:
    """What is passed over in a request that is answered all the same: for the answer, and logged. Fields as in errors.

    message: without texts of the request.
    """
    log.info("%s", message)
    return {"message": message, "param": param, "code": code}


def queue_full(limit: int) -> ApiError:
    """A 429 with Retry-After. limit: how many requests may wait."""
    why = (
        f"{limit} requests are waiting already"
        if limit
        else "As many requests are being answered as may be at a time, and none may wait"
    )
    return ApiError(
        429,
        f"{why}. Try again later.",
        kind="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


def unavailable(message: str, code: str, facts: dict[str, Any] | None = None) -> ApiError:
    """A 503: no model yet, or no more."""
    headers = {"Retry-After": str(RETRY_SECONDS)}
    return ApiError(503, message, kind=UNAVAILABLE, code=code, headers=headers, facts=facts)


def timed_out(seconds: float, *, begun: bool) -> ApiError:
    """A 504: the request's deadline has passed. begun: it had a seat, and did not only wait for one."""
    return ApiError(
        504,
        f"The answer was not complete after {seconds:g} seconds. Ask for fewer tokens."
        if begun
        else f"The request waited {seconds:g} seconds while others were answered, and may take no longer. "
        "Try again later.",
        kind="timeout_error",
        code="timeout",
    )


def stopping() -> ApiError:
    """A 503: the server is being stopped."""
    return unavailable("The server is stopping.", "stopping")


def client_gone() -> ApiError:
    """A 499: the client left before its answer."""
    return ApiError(GONE, "The client closed the connection.", code="client_gone")


def as_api_error(error: Exception, fields: dict[str, str] | None = None) -> ApiError:
    """Any exception as a refusal. fields: the library's option names -> the client's."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequest | TemplateError):
        name = error.data.get("name")
        default = "messages" if isinstance(error, TemplateError) else None
        too_long = isinstance(error, PromptTooLong)
        param = "prompt" if too_long else default if name is None else str(name)
        param = param if param is None else (fields or {}).get(param, param)
        if too_long:
            facts = {"n_prompt_tokens": error.data["num_tokens"], "n_ctx": error.data["n_ctx"]}
            # The size of the context is not the client's to choose.
            message = f"{error.message} Shorten it."
            return ApiError(400, message, param=param, code="context_length_exceeded", facts=facts)
        return bad_request(str(error), param)
    if isinstance(error, EngineClosed):
        return stopping()
    if isinstance(error, LocalspecError):
        return ApiError(
            500, error.message, kind="server_error"
        )  # the remedy is for who runs it: it is logged
    if isinstance(error, MemoryError):
        return ApiError(500, "There is not enough memory.", kind="server_error")
    return ApiError(500, f"{type(error).__name__}: {error}", kind="server_error")
