"""Shelf: conversations on this disk. Each is a JSON file; beside it may lie the models' state, of one at most."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from localspec.system.disk import disk_errors, write_durably

Message = dict[str, str]
TITLE = 60
"""Characters of a question that name its conversation."""


@dataclass
class Talk:
    """A conversation: questions and answers in turn. key: the name of its file.

    asked: the first question, while it has no answer yet. marks: by the index of an answer, which of its characters
    were drafted. Neither is on the disk.
    """

    key: str = field(default_factory=lambda: f"{time.time_ns()}-{secrets.token_hex(3)}")
    messages: list[Message] = field(default_factory=list)
    asked: str = ""
    marks: dict[int, list[bool]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The beginning of the first question."""
        text = " ".join((self.messages[0]["content"] if self.messages else self.asked).split())
        return text if len(text) <= TITLE else f"{text[:TITLE]}…"


class Shelf:
    """The conversations of the window, in a folder of its own in localspec's folder, readable by their owner alone.

    Not in `conversations`: that is the terminal's, and holds states that its user saved by name.
    """

    def __init__(self, home: Path) -> None:
        self.folder = home / "desktop-conversations"

    def all(self) -> list[Talk]:
        """Newest first; a file that is none is passed over."""
        files = sorted(self._found("*.json"), key=_written, reverse=True)
        return [talk for file in files if (talk := _read(file)) is not None]

    def save(self, key: str, messages: list[Message]) -> None:
        """Replaces the conversation in one step. Raises `StoreError`."""
        with disk_errors(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(self.folder / f"{key}.json", json.dumps({"messages": messages}, ensure_ascii=False))

    def state_of(self, key: str) -> Path:
        """Where the models' state of the conversation is, or would be."""
        return self.folder / f"{key}.localspec"

    def keep_state_of(self, key: str) -> None:
        """Removes the states of all others: one can take hundreds of megabytes."""
        for file in self._found("*.localspec"):
            if file != self.state_of(key):
                with suppress(OSError):
                    file.unlink()

    def remove(self, key: str) -> None:
        """Forgets the conversation. Raises `StoreError`."""
        with disk_errors(self.folder):
            (self.folder / f"{key}.json").unlink(missing_ok=True)
            self.state_of(key).unlink(missing_ok=True)

    def _found(self, pattern: str) -> list[Path]:
        with suppress(OSError):  # nobody may look
            return list(self.folder.glob(pattern))
        return []


def _written(file: Path) -> int:
    """When; 0 where it is gone meanwhile, as another window may have removed it."""
    with suppress(OSError):
        return file.stat().st_mtime_ns
    return 0


def _read(file: Path) -> Talk | None:
    if not file.is_file():  # a pipe would never end
        return None
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        messages = json.loads(file.read_text(encoding="utf-8"))["messages"]
        roles = [message["role"] for message in messages]
        texts = [message["content"] for message in messages]
        "".join(texts).encode()  # half characters could be neither shown nor read
        in_turn = roles == ["user", "assistant"] * (len(roles) // 2)
        if texts and in_turn:
            return Talk(
                file.stem, [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
            )
    return None
