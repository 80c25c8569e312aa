"""Stop strings over a stream of text, however it is cut into chunks."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.errors import InvalidRequest

MAX_STOPS = 64


class StopMatcher:
    """Lets text through until the first stop string is complete; that string and all after it are dropped.

    Two that are complete at the same character: the longer one counts, so that less is shown. Raises
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
        """Where the stop string begins that is the first to be complete."""
        found = ((text.find(stop), len(stop)) for stop in self._stops)
        ends = [(start + length, start) for start, length in found if start >= 0]
        return min(ends)[1] if ends else None

    def _held_back(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string may begin."""
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
