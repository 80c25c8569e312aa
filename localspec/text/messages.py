"""What a caller may hand in as messages or text, checked before any of it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from localspec.errors import InvalidRequest


def checked_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, str]]:
    """A copy with the text fields only: `role`, `content` and any other field that is a text.

    Fields that are None are as good as absent. Raises InvalidRequest, naming the message's index (from 0),
    for anything else that is not a text, and for text that no model can be given.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest(
            f"messages is a {type(messages).__name__}.", "Give a list of messages.", name="messages"
        )
    if not messages:
        raise InvalidRequest("messages is empty.", "Give at least one message.", name="messages")
    return [_checked_message(index, message) for index, message in enumerate(messages)]


def _checked_message(index: int, message: Mapping[str, object]) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(
            f"Message {index} is a {type(message).__name__}.",
            'Give a dict such as {"role": "user", "content": "..."}.',
            name="messages",
        )
    for field in ("role", "content"):
        if not isinstance(message.get(field), str):
            raise InvalidRequest(
                f"Message {index} has no text as its {field}: {message.get(field)!r:.60}.",
                f"Give {field} as a text.",
                name="messages",
            )
    if not message["role"]:
        raise InvalidRequest(
            f"Message {index} has an empty role.", "Give user, assistant or system.", name="messages"
        )
    return {
        str(field): checked_text(value, f"The {field} of message {index}", name="messages")
        for field, value in message.items()
        if value is not None
    }


def checked_text(text: object, what: str, *, name: str) -> str:
    """`text` if it can be given to a model; `what` begins the sentence of the InvalidRequest otherwise."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{what} is a {type(text).__name__}, not a text.", "Give a text.", name=name)
    if "\0" in text:
        raise InvalidRequest(
            f"{what} holds a NUL character at position {text.index(chr(0))}.", "Remove it.", name=name
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{what} holds half a surrogate pair (U+{ord(text[error.start]):04X}) at position {error.start}.",
            "Decode the text as UTF-8, or remove the character.",
            name=name,
        ) from None
    return text
