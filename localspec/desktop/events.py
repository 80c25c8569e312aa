"""What the worker tells the window. Each is small: the window takes many of them in one go."""

from __future__ import annotations

from dataclasses import dataclass

from localspec import Completion
from localspec.decoding.stats import Stats
from localspec.desktop.choices import Choice
from localspec.desktop.shelf import Message
from localspec.desktop.worker import Job


@dataclass(frozen=True)
class Progressed:
    """How far a download or a load is. fraction: 0 to 1."""

    sentence: str
    fraction: float


@dataclass(frozen=True)
class Loaded:
    """A model is ready. drafting: whether it drafts, and why not. notes: what is not as it was asked."""

    job: Job
    drafting: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Listed:
    """The models that can be chosen."""

    choices: list[Choice]


@dataclass(frozen=True)
class Piece:
    """A piece of the running answer. drafted: for each character, whether it came from an accepted draft."""

    text: str
    drafted: tuple[bool, ...]
    stats: Stats | None


@dataclass(frozen=True)
class Answered:
    """An answer ended. messages: of its conversation now; None where nothing was said, and it stays as it was."""

    completion: Completion
    messages: list[Message] | None


@dataclass(frozen=True)
class Failed:
    """A job ended with an error."""

    job: Job
    error: Exception


@dataclass(frozen=True)
class Closed:
    """Everything is saved and freed."""


Event = Progressed | Loaded | Listed | Piece | Answered | Failed | Closed
