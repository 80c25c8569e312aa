"""Where localspec keeps its files."""

from __future__ import annotations

import os
from pathlib import Path

from localspec.errors import StoreError


def default_home() -> Path:
    """LOCALSPEC_HOME, or the user's data folder for localspec. Raises StoreError."""
    import platformdirs

    given = os.environ.get("LOCALSPEC_HOME")
    return home_folder(given or platformdirs.user_data_dir("localspec", appauthor=False))


def home_folder(home: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder for localspec's files; `~` is the user's. Raises StoreError."""
    path = os.fspath(home) if isinstance(home, os.PathLike) else home
    if not isinstance(path, str) or not path or "\0" in path:
        raise _unusable(home, "it is no path")
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        raise _unusable(home, "there is no such user") from None
    except OSError as error:  # the working folder is gone
        raise _unusable(home, error.strerror or "it cannot be found") from None


def _unusable(home: object, reason: str) -> StoreError:
    return StoreError(
        f"The home folder {home!r} cannot be used: {reason}.",
        "Set LOCALSPEC_HOME, or home, to the path of a folder.",
        path=str(home),
    )
