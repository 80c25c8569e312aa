"""What a chat template may take: memory, output, steps and time, of which everything that it does is paid.

What one operation would make is estimated before it is done (`template_work.py`), because nothing can stop it
afterwards.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.utils import Namespace

_WORK = 32 << 20
"""Bytes that a template may make in all, a step counted as `STEP`; more for long conversations, see `allowance`."""
_VALUE = 4 << 20
"""Bytes of one value."""
_MOST_WORK = 1 << 32
"""What is added at most for templates that go through a conversation for each message of it."""
STEP = 64
"""Of work: what a turn of a loop, a call or an operator costs."""
_LONG = 4096
"""Bytes from which on a text counts by the room it takes while it is there."""
_WORKS = "it does too much"
_SECONDS, _GIVEN_A_SECOND, _MOST_MORE = 10.0, 1 << 14, 120.0
"""Of computing, for what its steps do not tell; one more for so many bytes that it gets, and at most so many more."""
MOST_BITS = 2000
"""Of whole numbers: the time of dividing them grows with the square, and Python writes out no long ones."""
TOO_LARGE = "it computes with a number that is too large"
_CONTAINERS: tuple[type[Iterable[Any]], ...] = (
    list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()),
)  # fmt: skip


class TooMuch(Exception):
    """A template asks for more than it may."""


class _Held(str):
    """A long text that a template made: its room is free again when the template forgets it.

    So a template may write a long conversation by adding to one text, which copies that text over and over.
    """

    allowed: Allowance
    size: int

    def __del__(self) -> None:
        self.allowed.held -= self.size


class Allowance:
    """What is left to one compilation or rendering. given: bytes of what the template gets."""

    def __init__(self, given: int) -> None:
        self.given = given
        self.left = _WORK + 64 * given + min(given * given >> 9, _MOST_WORK)
        self.room = _WORK + 64 * given
        self.value = _VALUE + 4 * given
        self.held, self.most_held = 0, 16 * self.value
        self.seconds = _SECONDS + min(given / _GIVEN_A_SECOND, _MOST_MORE)
        self.ends = time.thread_time() + self.seconds

    def spend(self, amount: int) -> None:
        """For what is made or done. Raises TooMuch where it is not left, or the time is up."""
        self.left -= amount
        if self.left < 0:
            raise TooMuch(_WORKS)
        if self.left & 0x3FFF < amount and time.thread_time() > self.ends:  # looked at once in a while
            raise TooMuch(f"it computes for more than {self.seconds:.0f} s")

    def write(self, amount: int) -> None:
        """For what stays until the end: the output."""
        self.room -= amount
        if self.room < 0:
            raise TooMuch(_WORKS)
        self.spend(amount)

    def hold(self, amount: int) -> None:
        """For a long text: room while it is there, and the time of copying it."""
        self.held += amount
        if self.held > self.most_held:
            raise TooMuch("it holds too much at a time")
        self.spend(STEP + (amount >> 8))

    def check(self, amount: int) -> int:
        """`amount`, if one value may have so many bytes."""
        if amount > self.value:
            raise TooMuch("it makes a value that is too large")
        return amount


current: ContextVar[Allowance] = ContextVar("template_allowance")


@contextmanager
def allowance(given: object = None) -> Iterator[Allowance]:
    """One compilation or rendering; `given` is what the template gets, which it may handle many times over."""
    allowed = Allowance(_size(given, sys.maxsize))
    token = current.set(allowed)
    try:
        yield allowed
    finally:
        current.reset(token)


def _size(value: Any, most: int) -> int:
    """Bytes of `value` when it is written out, where it stands twice counted twice. Raises TooMuch above `most`."""
    total, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (str, bytes, int)):
            total += sys.getsizeof(item)
        elif isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, Namespace):
            waiting.append(object.__getattribute__(item, "_Namespace__attrs"))
        elif isinstance(item, _CONTAINERS):
            waiting.extend(item)
        total += 16
        if total > most:
            raise TooMuch("it makes a value that is too large")
    return total


def measured(value: Any) -> int:
    """Bytes of `value` written out, paid for and within bounds."""
    allowed = current.get()
    if isinstance(value, (str, bytes)):
        return allowed.check(sys.getsizeof(value))
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise TooMuch(TOO_LARGE)
    size = _size(value, allowed.value)
    allowed.spend(size >> 4)
    return size


def kept(value: Any) -> Any:
    """`value` that was made, paid for."""
    size = measured(value)
    allowed = current.get()
    if type(value) is _Held:
        allowed.spend(STEP)
        return value
    if type(value) is str and size > _LONG:
        allowed.hold(size)
        held = _Held(value)
        held.allowed, held.size = allowed, size
        return held
    if isinstance(value, (str, bytes)):
        allowed.spend(size)
    elif isinstance(value, (list, tuple)):
        allowed.write(2 * len(value))
    return value


def cut(value: Any) -> Any:
    """A slice, paid for: a text is a copy, a list holds what there was."""
    if isinstance(value, (str, bytes)):
        return kept(value)
    spend(8 * len(value) if isinstance(value, (list, tuple)) else STEP)
    return value


def need(amount: int) -> None:
    """Raise TooMuch where one value may not have so many bytes."""
    current.get().check(amount)


def spend(amount: int) -> bool:
    """Pay for work; true, for use in a condition."""
    current.get().spend(amount)
    return True


def paid_items(values: Iterable[Any]) -> Iterator[Any]:
    """`values`, each paid for as it is taken."""
    for value in values:
        spend(STEP)
        yield value
