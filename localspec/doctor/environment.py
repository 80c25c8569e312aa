"""Variables of the environment that change what localspec does."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator

from localspec.doctor.finding import Finding, note, ok, problem
from localspec.hub.route import (
    CERTIFICATES,
    NOT_READ,
    certificates_fault,
    ignored_certificates,
    public,
)

KNOWN = ("LOCALSPEC_HOME", "LOCALSPEC_PAIRS", "LOCALSPEC_DEBUG")
_SHOWN = (
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_CACHE",
    "CUDA_VISIBLE_DEVICES",
    "PIP_INDEX_URL",
    "PIP_CONFIG_FILE",
    CERTIFICATES,
    "SSL_CERT_DIR",
    *NOT_READ,
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def check_environment() -> Iterator[Finding]:
    """Findings on localspec's own variables, misspelt ones, and others that matter; addresses lose their passwords."""
    topic = "variables"
    for name in sorted(name for name in os.environ if name.startswith("LOCALSPEC_") and name not in KNOWN):
        close = difflib.get_close_matches(name, KNOWN, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Known ones: {', '.join(KNOWN)}."
        yield note(topic, f"{name} is set, and localspec knows no such variable", hint)
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        yield note(topic, "HF_HUB_OFFLINE is set: Hugging Face will not be asked", "Unset HF_HUB_OFFLINE.")
    fault, ignored = certificates_fault(), ignored_certificates()
    if fault:
        yield problem(topic, fault, f"Correct {CERTIFICATES} or unset it.")
    if ignored:
        yield note(topic, ignored, f"Name the certificates in {CERTIFICATES}.")
    shown = (*KNOWN, *_SHOWN, *sorted(name for name in os.environ if name.lower() in _PROXIES))
    found = {name: _public(name, os.environ[name]) for name in shown if os.environ.get(name)}
    listed = ", ".join(f"{name}={value}" for name, value in found.items())
    yield ok(topic, listed or "none is set that changes what localspec does", **dict(found))


def _public(name: str, value: str) -> str:
    """The value, where it is an address without the name and password in it."""
    return public(value) if "://" in value or name.lower() in _PROXIES else value
