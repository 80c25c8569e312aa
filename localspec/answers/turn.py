"""Turn: a question and its answer, and which of them a full context has room for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from localspec.errors import InvalidRequest
from localspec.text.continuation import Said
from localspec.text.messages import checked_messages

Message = dict[str, str]


@dataclass(frozen=True)
class Turn:
    """A question and its answer; `attempt` counts how often the answer was regenerated.

    said: the ids of the prompt and of the answer.
    dropped: how many of the oldest turns were not in that prompt, because the context was full.
    """

    question: str
    answer: str
    attempt: int
    said: Said = field(repr=False)
    dropped: int = 0


def written(system: str, turns: Iterable[Turn], question: str | None = None) -> Iterator[Message]:
    """The messages of some turns, and of a question that was not answered yet."""
    if system:
        yield _message("system", system)
    for turn in turns:
        yield _message("user", turn.question)
        yield _message("assistant", turn.answer)
    if question is not None:
        yield _message("user", question)


def spoken(messages: Sequence[Mapping[str, str]]) -> tuple[str, list[Turn]]:
    """System prompt and turns of what `written` wrote; no model has read them. Raises `InvalidRequest`."""
    said = checked_messages(messages) if messages else []
    system = said.pop(0)["content"] if said and said[0]["role"] == "system" else ""
    roles = [message["role"] for message in said]
    if roles != ["user", "assistant"] * (len(said) // 2):
        raise InvalidRequest(
            f"The roles of the messages are {', '.join(roles[:8])}.",
            "After a system message at most, `user` and `assistant` must take turns, up to an answer.",
            name="messages",
        )
    # As they are: an answer's NULs are only replaced where the model reads it.
    given = [message["content"] for message in messages[len(messages) - len(said) :]]
    texts = [text if isinstance(text, str) else one["content"] for text, one in zip(given, said, strict=True)]
    return system, [_unread(*turn) for turn in zip(texts[::2], texts[1::2], strict=True)]


def _unread(question: str, answer: str) -> Turn:
    return Turn(question, answer, 0, Said((), "", (), answer))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def room_for_answer(n_ctx: int, max_tokens: int | None) -> int:
    """Tokens that turns are dropped for: a quarter of the context, or `max_tokens` where that is less."""
    return n_ctx // 4 if max_tokens is None else min(max_tokens, n_ctx // 4)


def first_with_room(size: Callable[[int], int], first: int, last: int, n_ctx: int, room: int) -> int:
    """The oldest turn that may stay in a full context, behind `first`; `last` where none may.

    size: tokens of the prompt that begins with that turn. What stays is read again, so turns are dropped until half of
    the context is free, and not one at every question. But the newest turn stays where it leaves `room`.
    """
    behind = range(first + 1, last + 1)
    for limit in (n_ctx // 2, n_ctx - room):
        place = bisect_left(behind, True, key=lambda turn: size(turn) <= limit)
        if place < len(behind) - 1:
            return behind[place]
    return last
