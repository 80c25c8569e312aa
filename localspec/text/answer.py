"""The text of one answer as its ids are committed, and where it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.text.detokenizer import Detokenizer
from localspec.text.stop import StopMatcher


class AnswerText:
    """Turns committed ids into text and says when the answer is over.

    ids:  committed so far, the end-of-generation id left out.
    text: given out so far; never holds half a character or what may become a stop string.
    """

    def __init__(
        self, piece: Callable[[int], bytes], eog_tokens: frozenset[int], stops: Sequence[str]
    ) -> None:
        self.ids: list[int] = []
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
        ready, self._stopped = self._stop.push(self._detokenizer.push(token))
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
