"""The pairs localspec knows by name: one TOML file each, built in, the user's own, or an organisation's."""

from __future__ import annotations

import difflib
import importlib.resources
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from importlib.resources.abc import Traversable
from pathlib import Path

from localspec.errors import CatalogueError, InvalidRequest, UnknownPair
from localspec.pairs.pair import HubSource, LocalSource, ModelFile, Pair, Source, WheelSource
from localspec.pairs.pairfile import read_pair
from localspec.system.home import default_home
from localspec.system.packages import mend

__all__ = [
    "DEFAULT_PAIR",
    "HubSource",
    "LocalSource",
    "ModelFile",
    "Pair",
    "Source",
    "WheelSource",
    "own_folder",
    "own_path",
    "pair",
    "pairs",
    "warnings",
]

DEFAULT_PAIR = "qwen2.5-coder-1.5b"
FOLDERS = "LOCALSPEC_PAIRS"
"""The environment variable with an organisation's folders of pair files, separated like those of PATH."""


def pair(name: str, home: Path | None = None) -> Pair:
    """The pair of that name. `home` holds the user's own; by default localspec's folder.

    Raises InvalidRequest for a name that is no text, UnknownPair, CatalogueError, StoreError.
    """
    files = _pair_files(home)
    if not isinstance(name, str):
        raise InvalidRequest(
            f"The name of the pair is {name!r:.60}.", f"Known pairs: {', '.join(files)}.", name="name"
        )
    if name not in files:
        raise UnknownPair(
            f"There is no pair named {name!r}.", _nearest(name, files), name=name, known=list(files)
        )
    return _read(files[name])


def _nearest(name: str, known: Collection[str]) -> str:
    """What may have been meant: all names that hold this one, else the likeliest, and then all there are."""
    holding = [each for each in known if name and name.lower() in each]
    if len(holding) > 1:
        return f"Which one: {', '.join(holding)}?"
    close = holding or difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known pairs: {', '.join(known)}."


def pairs(home: Path | None = None) -> list[Pair]:
    """All known pairs: the built-in ones, the default first, then the user's and those of LOCALSPEC_PAIRS, by name.

    A pair file outside localspec that cannot be used is left out: `warnings` names it. Raises CatalogueError.
    """
    built_in = set(_in_folder(_folder()))
    found = []
    for name, file in _pair_files(home).items():
        try:
            found.append(_read(file))
        except CatalogueError:
            if name in built_in:
                raise
    return found


def warnings(name: str | None = None, home: Path | None = None) -> list[str]:
    """One sentence for each pair file, or folder of them, that is not used; with `name`, for that pair's alone."""
    used, sentences = dict(_in_folder(_folder())), []
    for folder in _own_folders(home):
        try:
            files = _in_folder(folder)
        except OSError as error:
            if name is None and not (isinstance(error, FileNotFoundError) and folder == own_folder(home)):
                sentences.append(f"The pair folder {folder} cannot be read: {error.strerror}.")
            continue
        for found, file in files.items():
            if name in (None, found):
                sentences += _fault(found, file, used)
            used.setdefault(found, file)
    return sentences


def own_folder(home: Path | None = None) -> Path:
    """The folder of the user's own pair files."""
    return (default_home() if home is None else home) / "pairs"


def own_path(name: str, home: Path | None = None) -> Path | None:
    """The pair file that the pair comes from, or None for one that is built in."""
    file = None if name in _in_folder(_folder()) else _pair_files(home).get(name)
    return file if isinstance(file, Path) else None


def _fault(name: str, file: Traversable, used: dict[str, Traversable]) -> Iterator[str]:
    if name in used:
        other = "is built in" if name in _in_folder(_folder()) else f"is in {used[name]}"
        yield f"The pair file {file} is not used: another pair named {name} {other}."
        return
    try:
        _read(file)
    except CatalogueError as error:
        yield error.message


def _pair_files(home: Path | None) -> dict[str, Traversable]:
    """Pair files by name; where a name occurs twice, the first counts."""
    files = dict(_in_folder(_folder()))
    for folder in _own_folders(home):
        with suppress(OSError):
            for name, file in _in_folder(folder).items():
                files.setdefault(name, file)
    return files


def _in_folder(folder: Traversable) -> dict[str, Traversable]:
    """Pair files in the folder by name, the default pair first. Raises OSError."""
    # Some systems leave files such as ._NAME.toml beside those of another.
    files = [file.name for file in folder.iterdir() if not file.name.startswith(".")]
    names = [file.removesuffix(".toml") for file in files if file.endswith(".toml")]
    return {
        name: folder / f"{name}.toml" for name in sorted(names, key=lambda name: (name != DEFAULT_PAIR, name))
    }


def _own_folders(home: Path | None) -> Iterator[Path]:
    yield own_folder(home)
    for folder in os.environ.get(FOLDERS, "").split(os.pathsep):
        if folder:
            path = Path(folder)
            with suppress(RuntimeError):  # no such user: it then cannot be read either
                path = path.expanduser()
            yield path.absolute()


def _folder() -> Traversable:
    try:
        return importlib.resources.files("localspec_models")
    except ModuleNotFoundError:
        # A checkout that was not installed: the folder lies beside the package.
        beside = Path(__file__).resolve().parents[2] / "models"
        if not (beside / f"{DEFAULT_PAIR}.toml").is_file():
            raise CatalogueError(
                "The catalogue of pairs (package localspec_models) is missing.",
                mend("Reinstall localspec.", "localspec"),
                path=str(beside),
            ) from None
        return beside


def _read(file: Traversable) -> Pair:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogueError(f"The pair file {file} cannot be read: {error}.", path=str(file)) from error
    return read_pair(text, str(file))
