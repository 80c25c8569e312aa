"""The pairs localspec knows by name: one TOML file each, in the folder `models/`."""

from __future__ import annotations

import difflib
import importlib.resources
from importlib.resources.abc import Traversable
from pathlib import Path

from localspec.errors import CatalogueError, InvalidRequest, UnknownPair
from localspec.hub.pair import HubSource, ModelFile, Pair, Source, WheelSource
from localspec.hub.pairfile import read_pair

__all__ = ["DEFAULT_PAIR", "HubSource", "ModelFile", "Pair", "Source", "WheelSource", "pair", "pairs"]

DEFAULT_PAIR = "qwen2.5-coder-1.5b"


def pair(name: str) -> Pair:
    """The pair of that name. Raises InvalidRequest for a name that is no text, UnknownPair, CatalogueError."""
    files = _pair_files()
    if not isinstance(name, str):
        raise InvalidRequest(
            f"The name of the pair is {name!r:.60}.", f"Known pairs: {', '.join(files)}.", name="name"
        )
    if name not in files:
        close = difflib.get_close_matches(name.lower(), files, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        remedy = f"{hint}Known pairs: {', '.join(files)}."
        raise UnknownPair(f"There is no pair named {name!r}.", remedy, name=name, known=list(files))
    return _read(files[name])


def pairs() -> list[Pair]:
    """All known pairs, the default first, then by name. Raises CatalogueError."""
    return [_read(file) for file in _pair_files().values()]


def _pair_files() -> dict[str, Traversable]:
    folder = _folder()
    names = [file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")]
    return {
        name: folder / f"{name}.toml" for name in sorted(names, key=lambda name: (name != DEFAULT_PAIR, name))
    }


def _folder() -> Traversable:
    try:
        return importlib.resources.files("localspec_models")
    except ModuleNotFoundError:
        # A checkout that was not installed: the folder lies beside the package.
        beside = Path(__file__).resolve().parents[2] / "models"
        if not (beside / f"{DEFAULT_PAIR}.toml").is_file():
            raise CatalogueError(
                "The catalogue of pairs (package localspec_models) is missing.",
                "Reinstall localspec.",
                path=str(beside),
            ) from None
        return beside


def _read(file: Traversable) -> Pair:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogueError(f"The pair file {file} cannot be read: {error}.", path=str(file)) from error
    return read_pair(text, str(file))
