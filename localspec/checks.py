"""Refusing bad arguments: what a caller may hand in, and the sentence for what nobody can use.

Numbers are Python's own, numpy's, and any other type that says it is one; never a bool.
"""

from __future__ import annotations

import difflib
import operator
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from numbers import Real
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar, cast

from localspec.errors import InvalidRequest, PromptTooLong

Listener = TypeVar("Listener", bound=Callable[..., object])
StrPath = str | os.PathLike[str]
VERIFY = ("auto", "block", "rejection", "coupled")
"""Names of accept rules."""
LIBRARIES = ("auto", "llama", "ik")
"""What may be asked to compute: the library that is faster here, or one by its `Library.key`."""
HEAD = ("auto", "on", "off")
"""When the target's own prediction layers draft: where it has some and there is no draft model, always, or never."""
WHEN_FULL = ("error", "drop_oldest")
"""What a conversation may do when its context is full."""


def _is_bool(value: object) -> bool:
    """Python's, or numpy's, which need not be installed for that."""
    return type(value).__name__ in ("bool", "bool_")


def as_integer(value: object) -> int | None:
    """The whole number that `value` is, or None."""
    if _is_bool(value):
        return None
    try:
        return operator.index(cast(SupportsIndex, value))
    except TypeError:
        return None


def as_number(value: object) -> float | None:
    """The number that `value` is, or None."""
    if _is_bool(value) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def shown(value: object, width: int = 60) -> str:
    """How a value looks in one line of a message, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a whole number of more than 4300 digits has no repr
        return f"a {type(value).__name__}"
    return text if len(text) <= width else f"{text[: width - 3]}..."


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `InvalidRequest` for options that are not known, with all that are, the nearest name first."""
    names = list(known)
    unknown = sorted(set(given) - set(names))
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise InvalidRequest(
            f"There is no option {', '.join(unknown)}.",
            f"{hint}Known ones are {', '.join(names)}.",
            name=unknown[0],
        )


def check_characters(text: str, what: str, *, name: str | None) -> None:
    """Raise `InvalidRequest` for a text with half a surrogate pair; `what` begins the sentence."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{what} holds half a surrogate pair (U+{ord(text[error.start]):04X}) at position {error.start}.",
            "Decode the text as UTF-8, or remove the character.",
            name=name,
        ) from None


def text_or_items(prompt: object) -> str | list[Any]:
    """A text as it is; token ids or messages, from any iterable, as a list. Raises `InvalidRequest`.

    An iterator can be read once only: what is to be asked about it is asked of the list.
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, bytes | bytearray | memoryview):
        raise InvalidRequest(
            f"The prompt is a {type(prompt).__name__}.", "Decode it: a text must be a str.", name="prompt"
        )
    # The ids of a set have no order, and a dict is one message without its list.
    if isinstance(prompt, Mapping | Set) or not isinstance(prompt, Iterable):
        raise InvalidRequest(
            f"The prompt is {shown(prompt)}.", "Give a text, a list of token ids or messages.", name="prompt"
        )
    try:
        items = iter(prompt)
    except TypeError:  # a numpy array without a dimension
        raise InvalidRequest(f"The prompt is {shown(prompt)}.", "Give a list of it.", name="prompt") from None
    return list(items)


def checked_ids(ids: Iterable[int], n_vocab: int) -> list[int]:
    """Token ids of any number, from any iterable of them. Raises `InvalidRequest`."""
    items = text_or_items(ids)
    if isinstance(items, str):
        raise InvalidRequest("ids is a text.", "Give token ids.", name="ids")
    return [_checked_id(item, n_vocab, "ids") for item in items]


def checked_prompt(prompt: Iterable[int], n_vocab: int, n_ctx: int) -> list[int]:
    """Prompt ids that fit, from any iterable of them. Raises `InvalidRequest` or `PromptTooLong`."""
    items = text_or_items(prompt)
    if isinstance(items, str):
        raise InvalidRequest("The prompt is a text.", "Give its token ids.", name="prompt")
    if not items:
        raise InvalidRequest("The prompt is empty.", "Give at least one token.", name="prompt")
    if len(items) > n_ctx:
        raise PromptTooLong(
            f"The prompt has {len(items)} tokens and the context holds {n_ctx}.",
            "Shorten it, or load the model with a larger n_ctx, where it was trained for one.",
            command="Shorten it, or give a larger context with -c/--ctx-size, where the model was trained for one.",
            num_tokens=len(items),
            n_ctx=n_ctx,
        )
    if any(isinstance(item, Mapping) for item in items):
        raise InvalidRequest(
            "The prompt is a list of messages.", "Give it to `chat`; `generate` takes either.", name="prompt"
        )
    return [_checked_id(item, n_vocab, "prompt") for item in items]


def _checked_id(item: object, n_vocab: int, name: str) -> int:
    token = as_integer(item)
    if token is None or not 0 <= token < n_vocab:
        raise InvalidRequest(
            f"{'The prompt' if name == 'prompt' else name} holds {shown(item)}.",
            f"Token ids are whole numbers from 0 to {n_vocab - 1}.",
            name=name,
        )
    return token


def check_draft_tokens(value: int | str) -> int | str:
    """A draft length: "auto" or a number, which "off" becomes. Raises `InvalidRequest` otherwise."""
    if isinstance(value, str) and value in ("auto", "off"):
        return 0 if value == "off" else str(value)
    number = as_integer(value)
    if number is None or number < 0:
        raise InvalidRequest(
            f"draft_tokens is {shown(value)}.",
            "It must be auto, off or a number, 0 or more.",
            name="draft_tokens",
        )
    return number


def check_library(value: object) -> str:
    """What is to compute, of LIBRARIES. Raises `InvalidRequest` otherwise."""
    if not isinstance(value, str) or value not in LIBRARIES:
        raise InvalidRequest(
            f"library is {shown(value)}.", f"It must be one of {', '.join(LIBRARIES)}.", name="library"
        )
    return value


def check_head(value: object) -> str:
    """When the target's own head drafts, of HEAD. Raises `InvalidRequest` otherwise."""
    if not isinstance(value, str) or value not in HEAD:
        raise InvalidRequest(f"head is {shown(value)}.", f"It must be one of {', '.join(HEAD)}.", name="head")
    return value


MOST_PARALLEL = 64


def check_parallel(value: object) -> int | str:
    """How many answers run at a time: "auto" or a number. Raises `InvalidRequest` otherwise."""
    if isinstance(value, str) and value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_PARALLEL:
        raise InvalidRequest(
            f"parallel is {shown(value)}.",
            f"It must be auto or a whole number from 1 to {MOST_PARALLEL}.",
            name="parallel",
        )
    return value


def check_verify(value: object) -> str:
    """The name of an accept rule. Raises `InvalidRequest` otherwise."""
    if not isinstance(value, str) or value not in VERIFY:
        raise InvalidRequest(
            f"verify is {shown(value)}.", f"It must be one of {', '.join(VERIFY)}.", name="verify"
        )
    return value


def check_when_full(value: object) -> str:
    """What a conversation does when its context is full. Raises `InvalidRequest` for none of `WHEN_FULL`."""
    if not isinstance(value, str) or value not in WHEN_FULL:
        raise InvalidRequest(
            f"when_full is {shown(value)}.", f"It must be one of {', '.join(WHEN_FULL)}.", name="when_full"
        )
    return value


def checked_processors(value: object) -> tuple[Callable[..., Any], ...]:
    """Callbacks on logits. Raises `InvalidRequest` for what cannot be called."""
    given = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else (value,)
    if not all(callable(processor) for processor in given):
        raise InvalidRequest(
            f"logits_processors is {shown(value)}.",
            "Give a list of functions of (ids, logits).",
            name="logits_processors",
        )
    return given


def check_listener(name: str, value: Listener) -> Listener:
    """A function that a caller gives to be told something. Raises `InvalidRequest` for what cannot be called."""
    if not callable(value):
        raise InvalidRequest(
            f"{name} is {shown(value)}.", "Give a function of one argument, or leave it out.", name=name
        )
    return value


def checked_path(name: str, value: object) -> Path:
    """The path of a file or folder that an argument gives; `~` is the user's. Raises `InvalidRequest` naming it."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise InvalidRequest(f"{name} is {shown(value)}.", "Give its path as a text or a Path.", name=name)
    return user_path(path)


def user_path(text: str) -> Path:
    """A path as a user writes it: `~` is the home folder, also where no shell says so; `~nobody` is itself."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - that of pathlib raises where there is no such user


def checked_seconds(value: object) -> float | None:
    """A time after which to unload. Raises `InvalidRequest` for anything but None and a number above 0."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < threading.TIMEOUT_MAX:
        raise InvalidRequest(
            f"unload_after is {shown(value)}.", "Give seconds, more than 0, or None.", name="unload_after"
        )
    return float(value)


def check_count(name: str, value: object, high: int = 2**31 - 1) -> None:
    """Raise `InvalidRequest` unless `value` is a whole number from 1 to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise InvalidRequest(
            f"{name} is {value!r}.", f"It must be a whole number from 1 to {high}.", name=name
        )


def checked_switch(name: str, value: object) -> bool:
    """`value`. Raises `InvalidRequest` for what is not True or False."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {shown(value)}.", "It must be True or False.", name=name)
    return value


def checked_amount(name: str, value: object) -> int:
    number = as_integer(value)
    if number is None or number < 0:
        raise InvalidRequest(
            f"{name} is {shown(value)}.", "It must be a whole number, 0 or more.", name=name, value=value
        )
    return number
