"""Variables of the environment that change what localspec does."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator

from localspec.doctor.finding import Finding, note, ok

KNOWN = ("LOCALSPEC_HOME", "LOCALSPEC_PAIRS", "LOCALSPEC_DEBUG")
_SHOWN = (
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_CACHE",
    "CUDA_VISIBLE_DEVICES",
    "PIP_INDEX_URL",
    "PIP_CONFIG_FILE",
)


def check_environment() -> Iterator[Finding]:
    """Findings on localspec's own variables, misspelt ones, and others that matter; addresses lose their passwords."""
    topic = "variables"
    for name in sorted(name for name in os.environ if name.startswith("LOCALSPEC_") and name not in KNOWN):
        close = difflib.get_close_matches(name, KNOWN, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Known ones: {', '.join(KNOWN)}."
        yield note(topic, f"{name} is set, and localspec knows no such variable", hint)
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        yield note(topic, "HF_HUB_OFFLINE is set: Hugging Face will not be asked", "Unset HF_HUB_OFFLINE.")
    found = {name: _public(os.environ[name]) for name in (*KNOWN, *_SHOWN) if os.environ.get(name)}
    listed = ", ".join(f"{name}={value}" for name, value in found.items())
    yield ok(topic, listed or "none is set that changes what localspec does", **dict(found))


def _public(value: str) -> str:
    """An address without the name and password in it."""
    scheme, mark, rest = value.partition("://")
    if not mark:
        return value
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"
