"""Counters in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.decoding.stats import Stats
from localspec.engine.seats import SeatState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FROM_STATS = (
    ("prompt_tokens_total", "prompt_tokens", "Tokens of prompts, cached ones included."),
    ("cached_tokens_total", "cached_tokens", "Tokens of prompts that were in the cache."),
    ("completion_tokens_total", "tokens", "Tokens of answers."),
    ("drafted_tokens_total", "drafted", "Tokens that were drafted."),
    ("accepted_tokens_total", "accepted", "Drafted tokens that stand in answers."),
    ("rounds_total", "rounds", "Passes of the target that gave tokens."),
    ("prefill_seconds_total", "prefill_seconds", "Seconds until first tokens."),
    ("decode_seconds_total", "decode_seconds", "Seconds after first tokens."),
)


@dataclass
class Metrics:
    """requests: by path and status. totals: sums over the `Stats` of all answers."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)

    def count(self, path: str, status: int) -> None:
        """Count one response. path: of the route, or "other"."""
        self.requests[path, status] += 1

    def add(self, stats: Stats) -> None:
        """Add the figures of one complete answer."""
        for _, name, _ in _FROM_STATS:
            self.totals[name] += getattr(stats, name)

    def text(self, *, running: int, waiting: int, loaded: bool, seats: Sequence[SeatState] = ()) -> str:
        """Every counter and gauge. running, waiting: requests at this moment. loaded: the model is in memory.

        seats: those of the engine, where it has several.
        """
        lines = _family("requests_total", "counter", "Requests by path and status.")
        lines += [
            f'localspec_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        ]
        for name, source, meaning in _FROM_STATS:
            lines += [*_family(name, "counter", meaning), f"localspec_{name} {self.totals[source]:.17g}"]
        for name, value, meaning in (
            ("requests_running", running, "Requests that are being answered."),
            ("requests_waiting", waiting, "Requests that wait for a seat."),
            ("model_loaded", int(loaded), "Whether the model is in memory."),
        ):
            lines += [*_family(name, "gauge", meaning), f"localspec_{name} {value}"]
        for name, values, meaning in (
            ("seat_busy", [int(seat.busy) for seat in seats], "Whether the seat answers."),
            ("seat_tokens", [seat.tokens for seat in seats], "Tokens in the seat's cells."),
        ):
            lines += _family(name, "gauge", meaning) if values else []
            lines += [f'localspec_{name}{{seat="{index}"}} {value}' for index, value in enumerate(values)]
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP localspec_{name} {meaning}", f"# TYPE localspec_{name} {kind}"]
