"""Settings: what the window remembers."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from localspec.system.disk import disk_errors, write_durably

RANGES: dict[str, tuple[float, float]] = {
    "n_ctx": (256, 1 << 20),
    "temperature": (0.0, 2.0),
    "width": (360, 1 << 14),
    "height": (300, 1 << 14),
}
"""What numbers may be."""


@dataclass
class Settings:
    """model: the one loaded last. n_ctx: tokens of context. colours: whether accepted drafted tokens are marked."""

    model: str = ""
    n_ctx: int = 4096
    temperature: float = 0.7
    system: str = ""
    drafting: bool = True
    colours: bool = False
    width: int = 1000
    height: int = 720

    def save(self, path: Path) -> None:
        """Remember them. Raises `StoreError`."""
        with disk_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, json.dumps(asdict(self), indent=2))


def read_settings(path: Path) -> Settings:
    """What was remembered; the usual ones for what is missing or of another kind."""
    settings = Settings()
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        for name, value in json.loads(path.read_text(encoding="utf-8")).items():
            known = name in {each.name for each in fields(Settings)}
            if known and type(value) is type(getattr(settings, name)) and _is_usable(name, value):
                setattr(settings, name, value)
    return settings


def _is_usable(name: str, value: object) -> bool:
    if isinstance(value, str):
        return value == value.encode("utf-8", "ignore").decode()
    least, most = RANGES.get(name, (0, 1))
    return isinstance(value, int | float) and least <= value <= most
