"""Readers of answers in seats that read on, cancel, or leave at random moments."""

from __future__ import annotations

import random
import threading
import time

PATIENCE = 8
"""Chunks after which a reader acts, at most."""


def draws(seed, count, *choices):
    """Of each, `count` random picks from each of `choices`, with a chance from 0 to 1."""
    draw = random.Random(seed)
    return [(*map(draw.choice, choices), draw.random()) for _ in range(count)]


def read(ask, what, chance):
    """The completion of the stream that `ask` begins, or None where the reader left.

    what: "whole", "cancel" or "leave" after some chunks, or "deadline": cancelled by a timer.
    """
    time.sleep(0.004 * chance)
    stream, found = ask(), None
    if what == "deadline":
        threading.Timer(0.003 + 0.05 * chance, stream.cancel).start()
    for count, chunk in enumerate(stream):
        found = chunk.completion
        if what == "cancel" and count > PATIENCE * chance:
            stream.cancel()
        if what == "leave" and count > PATIENCE * chance:
            stream.close()
            return None
    return found
