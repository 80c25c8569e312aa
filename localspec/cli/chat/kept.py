"""Conversations on this disk: those that were saved by name, and the last ones, which are kept by themselves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli.terminal import say
from localspec.errors import ConversationFileError, LocalspecError

if TYPE_CHECKING:
    from localspec.answers.conversation import Conversation

MOST = 30
"""Conversations that are kept by themselves; the oldest goes first."""
SUFFIX = ".localspec"
UNFINISHED_SECONDS = 3600.0
"""How old a file must be that nobody finished, to be removed."""
_NAME = re.compile(r"\w[\w -]{0,79}")


def state_folder() -> Path:
    """LOCALSPEC_HOME where it is set, else the user's state folder for localspec. Raises `StoreError`."""
    from platformdirs import user_state_path

    from localspec.system.home import home_folder

    given = os.environ.get("LOCALSPEC_HOME")
    return home_folder(given) if given else user_state_path("localspec", appauthor=False)


@dataclass(frozen=True)
class Entry:
    """One of them. seconds: when it was written. model: of the command line. by_itself: nobody saved it by name."""

    path: Path
    seconds: float
    turns: int
    question: str
    model: Mapping[str, str]
    by_itself: bool

    @property
    def name(self) -> str:
        """What it is loaded by."""
        return self.path.name.removesuffix(SUFFIX)


class Kept:
    """A folder of conversations that its owner alone can read.

    model: what they are held with now, as the command line names it (pair, target, draft).
    """

    def __init__(self, folder: Path, model: Mapping[str, str], *, by_itself: bool = True) -> None:
        self.model = model
        self._folder, self._by_itself = folder, by_itself
        self._path: Path | None = None
        self._replaced: Entry | None = None
        self._complained = False

    def entries(self) -> list[Entry]:
        """All, the newest first."""
        found = [*self._read(self._folder, by_itself=False), *self._read(self._last, by_itself=True)]
        return sorted(found, key=lambda entry: entry.seconds, reverse=True)

    def newest(self) -> Entry:
        """The last one that was kept by itself. Raises `ConversationFileError` where there is none."""
        for entry in self.entries():
            if entry.by_itself:
                return entry
        raise ConversationFileError(
            f"There is no conversation in {self._last} to go on with.",
            "Begin one without --continue; it is kept from its first answer on.",
        )

    def save(self, conversation: Conversation, name: str) -> Path:
        """Save it by name, with the models' state. Raises `ConversationFileError`."""
        path = self._folder / f"{name}{SUFFIX}"
        self._write(conversation, path, with_state=True)
        return path

    def keep(self, conversation: Conversation) -> None:
        """Keep the conversation as it is now; what goes wrong is said once and ends nothing."""
        if not self._by_itself or not conversation.turns:
            return
        try:
            path = self._path or self._free()
            self._write(conversation, path, with_state=False)
            self._path = path
            self._forget_old()
        except LocalspecError as error:
            if not self._complained:
                say(f"This conversation is not kept: {error.message}", dim=True)
            self._complained = True

    def begin_anew(self, replaced: Entry | None = None) -> None:
        """What is kept from now on is another conversation. replaced: the one whose place it takes."""
        self._path, self._replaced = None, replaced

    def _free(self) -> Path:
        """A name of this moment that no conversation has."""
        begun = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{os.getpid()}"
        paths = (self._last / f"{begun}{more}{SUFFIX}" for more in ("", *map("-{}".format, range(2, 1000))))
        # That of pathlib raises where it may not look.
        return next(path for path in paths if not os.path.exists(path))  # noqa: PTH110

    @property
    def _last(self) -> Path:
        return self._folder / "last"

    def _write(self, conversation: Conversation, path: Path, *, with_state: bool) -> None:
        first = " ".join(conversation.turns[0].question.split())[:200]
        about = {"model": dict(self.model), "turns": len(conversation.turns), "question": first}
        try:
            for folder in (self._folder, path.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            conversation.save(path, with_state=with_state)
            with os.fdopen(os.open(_about(path), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
                json.dump(about, file)
        except OSError as error:
            raise ConversationFileError(
                f"The conversation cannot be written to {path}: {error.strerror or error}.",
                "Check the folder's permissions, or set LOCALSPEC_HOME to another one.",
                path=str(path),
            ) from error

    def _forget_old(self) -> None:
        """Those beyond the bound; and the one that this goes on with, unless another chat wrote it meanwhile."""
        mine = [entry for entry in self._read(self._last, by_itself=True) if entry.path != self._path]
        old = sorted(mine, key=lambda entry: entry.seconds, reverse=True)[MOST - 1 :]
        if self._replaced in mine:
            old.append(self._replaced)
        self._replaced = None
        for entry in old:
            with contextlib.suppress(OSError):
                entry.path.unlink(missing_ok=True)
                _about(entry.path).unlink(missing_ok=True)
        for folder in (self._folder, self._last):  # and what a program left that was killed while it wrote
            for left in _found(folder, f".*{SUFFIX}.*.part"):
                with contextlib.suppress(OSError):
                    if time.time() - left.stat().st_mtime > UNFINISHED_SECONDS:
                        left.unlink()

    def _read(self, folder: Path, *, by_itself: bool) -> Iterator[Entry]:
        for path in _found(folder, f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                about = _told(_about(path))
                model = {name: text for name, text in dict(about["model"]).items() if isinstance(text, str)}
                yield Entry(
                    path, path.stat().st_mtime, int(about["turns"]), str(about["question"]), model, by_itself
                )


def _found(folder: Path, pattern: str) -> list[Path]:
    """None where nobody may look."""
    with contextlib.suppress(OSError):
        return list(folder.glob(pattern))
    return []


def is_name(text: str) -> bool:
    """Whether it is a name to save by: letters, digits, - and _, and blanks within. Anything else is a path."""
    return _NAME.fullmatch(text) is not None and text == text.strip()


def name_for(conversation: Conversation) -> str:
    """A name of the first words of the first question."""
    words = re.findall(r"\w+", conversation.turns[0].question.lower())
    return "-".join(words[:6])[:40].strip("-_") or "conversation"


def _about(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}.json")


def _told(path: Path) -> dict[str, Any]:
    """What is told beside a conversation; of a file that does not tell it, nothing."""
    nothing = {"model": {}, "turns": 0, "question": ""}
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        int(about["turns"]), dict(about["model"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return nothing
    return {**nothing, **about}
