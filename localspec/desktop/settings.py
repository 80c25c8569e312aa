"""Settings: what the window remembers."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from localspec.system.disk import disk_errors, write_durably


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
    with suppress(OSError, ValueError, AttributeError):
        for name, value in json.loads(path.read_text(encoding="utf-8")).items():
            if name in {each.name for each in fields(Settings)}:
                usual = getattr(settings, name)
                if type(value) is type(usual) and (not isinstance(value, int) or value >= 0):
                    setattr(settings, name, value)
    return settings
