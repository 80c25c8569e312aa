"""Responses kept in memory, for those that continue them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_RESPONSES = 256
MOST_CHARACTERS = 8_000_000


@dataclass(frozen=True)
class Kept:
    """payload: as the client got it. messages: the conversation up to its answer, without instructions."""

    payload: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]

    @property
    def size(self) -> int:
        """About how many characters it takes."""
        return len(str(self.payload)) + sum(len(str(message)) for message in self.messages)


class ResponseStore:
    """The latest responses; older ones are forgotten first. Any thread may use it."""

    def __init__(self, most: int = MOST_RESPONSES, characters: int = MOST_CHARACTERS) -> None:
        self._most, self._characters = most, characters
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._sizes: dict[str, int] = {}

    def add(self, name: str, kept: Kept) -> None:
        """Keep one. One that is too large alone is not kept."""
        size = kept.size
        with self._lock:
            self._kept[name], self._sizes[name] = kept, size
            while len(self._kept) > self._most or sum(self._sizes.values()) > self._characters:
                oldest, _ = self._kept.popitem(last=False)
                del self._sizes[oldest]

    def get(self, name: str) -> Kept | None:
        """The response, or None if there is none of that name or it was forgotten."""
        with self._lock:
            return self._kept.get(name)

    def item(self, name: str) -> Mapping[str, Any] | None:
        """The output item of that id in any response that is kept, or None."""
        with self._lock:
            items = (item for kept in self._kept.values() for item in kept.payload.get("output", ()))
            return next((item for item in items if item.get("id") == name), None)

    def remove(self, name: str) -> bool:
        """Forget one; whether there was one."""
        with self._lock:
            self._sizes.pop(name, None)
            return self._kept.pop(name, None) is not None
