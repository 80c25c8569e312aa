"""The text of one answer as its ids are committed, and where it ends."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from localspec.errors import InvalidRequest


class Detokenizer:
    """Ids to text, one by one. piece: the bytes of one id.

    The pieces of text joined are the whole answer's bytes decoded as UTF-8, with U+FFFD for what is not
    valid.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text completed by `token`, possibly ""."""
        return self._decoder.decode(self._piece(token))

    def flush(self) -> str:
        """What is left when no more tokens come: U+FFFD for half a character, else ""."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


MAX_STOPS = 64


class StopMatcher:
    """Lets text through until the first stop string is complete; that string and all after it are dropped.

    Of two that are complete at the same character the longer one counts, so that less is shown. Raises
    InvalidRequest for an empty stop string, one that is no text, and for more than 64 of them.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = _checked(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> tuple[str, bool]:
        """Text that can be shown now, and whether a stop string was hit, now or before."""
        if self.hit:
            return "", True
        text = self._held + text
        start = self._first_match(text)
        if start is not None:
            self._held, self.hit = "", True
            return text[:start], True
        keep = self._held_back(text)
        shown, self._held = text[: len(text) - keep], text[len(text) - keep :]
        return shown, False

    def flush(self) -> str:
        """The text held back, when no more comes."""
        rest, self._held = self._held, ""
        return rest

    def _first_match(self, text: str) -> int | None:
        """Where the stop string that is complete first begins, or None."""
        found = ((text.find(stop), len(stop)) for stop in self._stops)
        ends = [(start + length, start) for start, length in found if start >= 0]
        return min(ends)[1] if ends else None

    def _held_back(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string may begin with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


def _checked(stops: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stops, str):
        stops = (stops,)
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(
            f"{len(stops)} stop strings were given.",
            f"Give at most {MAX_STOPS}.",
            name="stop",
            value=len(stops),
        )
    for index, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop:
            raise InvalidRequest(
                f"Stop string {index} is {stop!r}.",
                "Give a text of at least one character.",
                name="stop",
                value=stop,
            )
    return tuple(stops)


class AnswerText:
    """Turns committed ids into text and says when the answer is over.

    ids:  committed so far, the end-of-generation id left out.
    ends: for each of them, how many characters the text has with it; what is held back, or cut off, counts.
    text: given out so far; never holds half a character or what may become a stop string.
    """

    def __init__(
        self, piece: Callable[[int], bytes], eog_tokens: frozenset[int], stops: Sequence[str]
    ) -> None:
        self.ids: list[int] = []
        self.ends: list[int] = []
        self.text = ""
        self._eog = eog_tokens
        self._detokenizer = Detokenizer(piece)
        self._stop = StopMatcher(stops)
        self._stopped = False
        self._ready = ""
        self._taken = 0

    def check(self, token: int) -> str | None:
        """Take in one committed id; "stop" when it ends the answer: an end of generation, or a stop string."""
        if token in self._eog:
            return "stop"
        self.ids.append(token)
        text = self._detokenizer.push(token)
        self.ends.append((self.ends[-1] if self.ends else 0) + len(text))
        ready, self._stopped = self._stop.push(text)
        self._ready += ready
        return "stop" if self._stopped else None

    def take(self) -> str:
        """Text that became certain since the last call."""
        ready, self._ready = self._ready, ""
        self.text += ready
        return ready

    def take_ids(self) -> tuple[int, ...]:
        """Ids added since the last call."""
        new, self._taken = tuple(self.ids[self._taken :]), len(self.ids)
        return new

    def finish(self) -> str:
        """The rest: what was held back, unless a stop string ended the answer."""
        if not self._stopped:
            ready, hit = self._stop.push(self._detokenizer.flush())
            self._ready += ready + ("" if hit else self._stop.flush())
        return self.take()
