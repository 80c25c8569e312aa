"""A folder that an application ships: a pair file and the files beside it. Read only, no store, no network."""

from __future__ import annotations

from pathlib import Path

from localspec.errors import CatalogueError
from localspec.pairs.pair import ModelFile, Pair
from localspec.pairs.pairfile import read_pair


def read_folder(folder: Path) -> tuple[Pair, Path, Path | None]:
    """The pair, its target, and its draft or None. Raises CatalogueError (`path`).

    The files' sizes are checked, not their sha256.
    """
    pair = _pair(folder)
    paths = [_file(file, folder) for file in pair.files]
    target, draft = (*paths, None)[:2]
    assert target is not None
    return pair, target, draft


def _pair(folder: Path) -> Pair:
    try:
        found = sorted(path for path in folder.glob("*.toml") if not path.name.startswith("."))
        if len(found) == 1:
            return read_pair(found[0].read_text(encoding="utf-8"), str(found[0]))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CatalogueError(
            f"The folder {folder} cannot be read: {reason}.", _REMEDY, command=_COMMAND, path=str(folder)
        ) from None
    fault = (
        f"has {len(found)} pair files"
        if found
        else "has no pair file"
        if folder.is_dir()
        else "does not exist"
    )
    message = f"The folder {folder} {fault}, and must have one."
    raise CatalogueError(message, _REMEDY, command=_COMMAND, path=str(folder))


_REMEDY = "Give a folder that an export has made."
_COMMAND = "Give a folder that `localspec export` has made."


def _file(file: ModelFile, folder: Path) -> Path:
    """The file, or the first part of a split model, once all of it is seen to be there."""
    paths = [_piece(piece, folder) for piece in file.pieces]
    return paths[0]


def _piece(piece: ModelFile, folder: Path) -> Path:
    path = piece.local_paths[0] if piece.local_paths else folder / piece.file
    if path.is_file() and path.stat().st_size == piece.bytes:
        return path
    fault = "has another size than its pair file says" if path.is_file() else "is missing"
    raise CatalogueError(f"{path} {fault}.", "Copy the folder again.", path=str(path))
