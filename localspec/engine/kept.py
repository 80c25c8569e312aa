"""Keeper: what an `LLM` needs of whoever keeps its engine, in this process or in another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from localspec.decoding.control import Controller
from localspec.engine.engine import Engine
from localspec.engine.measured_costs import Costs
from localspec.engine.options import EngineOptions, Notify
from localspec.engine.seats import Seats


@dataclass(frozen=True)
class Order:
    """What to load, and how. draft_tokens: "auto" or a number. home: where measurements are kept.

    calibrate: measure what passes cost before it counts as loaded.
    """

    target: Path
    draft: Path | None
    options: EngineOptions
    draft_tokens: int | str
    home: Path | None = None
    calibrate: bool = False

    def __str__(self) -> str:
        return " and ".join(path.name for path in (self.target, self.draft) if path)


class Flag(Protocol):
    """Stops passes while it is set."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Keeper(Protocol):
    """Its parts are described at `EngineKeeper`, which keeps an engine of this process."""

    order: Order
    warnings: list[str]
    num_seats: int

    @property
    def seats(self) -> Seats | None: ...

    @property
    def cancel(self) -> Flag: ...

    @property
    def loaded(self) -> bool: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def settings(self) -> dict[str, object]: ...

    @property
    def drafting(self) -> str: ...

    @property
    def hint(self) -> str: ...

    @property
    def may_measure(self) -> bool: ...

    def unload(self) -> None: ...

    def cancel_loading(self) -> None: ...

    def stop_loading(self) -> None: ...

    def close(self) -> None: ...

    def controller(self, draft_tokens: int | str) -> Controller: ...

    def seat_controller(self, draft_tokens: int | str, max_width: int) -> Controller: ...

    def calibrate(
        self, *, redo: bool = False, notify: Notify = ..., skip: Callable[[], bool] = ...
    ) -> Costs: ...

    def measure_idly(self, stop: Callable[[], bool]) -> None: ...

    def keep_costs(self) -> None: ...
