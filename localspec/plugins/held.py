"""The models that this process has loaded for its plugins: each once, and kept for the next question."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import localspec
from localspec.errors import HubError, MemoryShort
from localspec.pairs.reference import parse_reference
from localspec.store.known import known_pair
from localspec.store.store import Store


@dataclass(frozen=True)
class _Held:
    """options: those of the load."""

    llm: localspec.LLM
    options: Mapping[str, Any]


class HeldModels:
    """Loaded models by name. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}

    def get(self, name: str, options: Mapping[str, Any]) -> localspec.LLM:
        """The pair of that name, or the pulled `org/repo:quant`, loaded with these options of `LoadOptions`.

        Where it was loaded with others, it is loaded again once its running answers have ended; and where memory is
        short, other models are freed so. Raises what `LLM.from_pair` and `LLM.from_hub` raise, and `EngineBusy` where
        this same thread is reading an answer that would have to end.
        """
        with self._lock:
            held = self._held.get(name)
            if held is not None and held.options == options:
                return held.llm
            if held is not None:
                self._free(name)
            try:
                llm = _load(name, options)
            except MemoryShort:
                if not self._held:
                    raise
                self._free(*self._held)
                llm = _load(name, options)
            self._held[name] = _Held(llm, dict(options))
            return llm

    def close(self) -> None:
        """Free all of them, and end their answers."""
        with self._lock:
            for held in self._held.values():
                held.llm.close()
            self._held.clear()

    def _free(self, *names: str) -> None:
        for name in names:
            with self._held[name].llm.exclusive():
                pass  # its answers have ended
            self._held.pop(name).llm.close()


def _load(name: str, options: Mapping[str, Any]) -> localspec.LLM:
    load = localspec.LLM.from_pair if parse_reference(name) is None else localspec.LLM.from_hub
    return load(name, **options)


def is_here(name: str) -> bool:
    """Whether all files of a known pair are on this disk."""
    try:
        store = Store()
        store.pair_paths(known_pair(name, store))
    except HubError:
        return False
    return True
