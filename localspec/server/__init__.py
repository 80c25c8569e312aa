"""OpenAI-compatible HTTP on a loaded engine; needs the extra `server`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.server.app import create_app
    from localspec.server.settings import Settings

__all__ = ["Settings", "create_app"]

_HOMES = {"Settings": "localspec.server.settings", "create_app": "localspec.server.app"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
