"""Pins: which bytes a reference to a repository stands for, kept on disk so that they stay the same."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from localspec.errors import StoreError
from localspec.gguf.split import part_name
from localspec.pairs.pair import HubSource, ModelFile, Pair, split_model
from localspec.system.disk import disk_errors, write_durably
from localspec.system.home import default_home, home_folder
from localspec.system.locks import locked

FORMAT = 1
TAG = "hub"
"""The tag of every pair that is a pinned reference."""
_NAME = re.compile(r"[\w+=@,()\[\] .-]+\.gguf", re.IGNORECASE)
_SHA256, _COMMIT = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


def pinned_pair(name: str, licence: str, target: ModelFile) -> Pair:
    """The pair that a pinned reference is: a target of that name without a draft."""
    source = target.pieces[0].sources[0]
    assert isinstance(source, HubSource)
    summary = f"{source.repo} at commit {source.revision[:8]}"
    return Pair(name, summary, licence, context=0, tags=(TAG,), target=target, draft=None)


def hub_model(repo: str, revision: str, files: list[tuple[str, int, str]]) -> ModelFile:
    """The model of these files of a repository: path, bytes, sha256; several are the parts of one.

    Raises ValueError if the revision is no commit, a name, size or sha256 is malformed, or the files are not all parts
    of one model.
    """
    if not _COMMIT.fullmatch(revision) or not files:
        raise ValueError(f"the revision {revision!r} is no commit")
    parts = [_file(repo, revision, *file) for file in files]
    if len(parts) == 1:
        return parts[0]
    name = part_name(parts[0].file)
    if name is None or [part.file for part in parts] != name.all_names:
        raise ValueError(f"{parts[0].file} and the others are not all parts of one model")
    return split_model(parts)


def _file(repo: str, revision: str, path: str, size: int, sha256: str) -> ModelFile:
    name = path.rpartition("/")[2]
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a file")
    if type(size) is not int or size < 1 or not _SHA256.fullmatch(sha256):
        raise ValueError(f"{name} has no size and sha256")
    return ModelFile(name, size, sha256, (HubSource(repo, revision, path if path != name else ""),))


class Pins:
    """The folder `references` of a store, one file for each reference. Reading creates nothing.

    home: as for `Store`.
    """

    def __init__(self, home: Path | None = None) -> None:
        self.home = default_home() if home is None else home_folder(home)
        self.folder = self.home / "references"

    def get(self, name: str) -> Pair | None:
        """What the reference was pinned to, or None. Raises StoreError for a file that is damaged."""
        return self._read(self._path(name))

    def all(self) -> list[Pair]:
        """All pinned references, by name; damaged files are left out."""
        found = [pair for pair in self._every() if isinstance(pair, Pair)]
        return sorted(found, key=lambda pair: pair.name)

    def damaged(self) -> list[StoreError]:
        """The error of each file that cannot be read."""
        return [fault for fault in self._every() if isinstance(fault, StoreError)]

    def _every(self) -> Iterator[Pair | StoreError | None]:
        for path in sorted(self.folder.glob("*.json")) if self.folder.is_dir() else ():
            try:
                yield self._read(path)
            except StoreError as error:
                yield error

    def put(self, pair: Pair, *, replace: bool = False) -> Pair:
        """Pins the reference, unless it is pinned already and `replace` is not set. Returns what it is pinned to then.

        Raises StoreError.
        """
        with disk_errors(self.home):
            for folder in (self.folder, self.home / "locks"):
                folder.mkdir(parents=True, exist_ok=True)
            with locked(self.home / "locks" / "references.lock"):
                standing = None if replace else self.get(pair.name)
                if standing is None:
                    write_durably(self._path(pair.name), json.dumps(_written(pair), indent=1) + "\n")
                return standing or pair

    def remove(self, name: str) -> bool:
        """Forgets the reference, even a damaged one; returns whether it was there. Raises StoreError."""
        path = self._path(name)
        there = path.exists()
        with disk_errors(self.home):
            path.unlink(missing_ok=True)
        return there

    def _path(self, name: str) -> Path:
        # Hubs find repositories in any case of letters, and so do some disks.
        key = name.casefold()
        readable = re.sub(r"[^a-z0-9._-]+", "-", key)[:80].strip(".-")
        return self.folder / f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"

    def _read(self, path: Path) -> Pair | None:
        try:
            return _pair(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"The pinned reference {path} cannot be read: {error}.",
                "Delete that file, or pull the reference with update=True.",
                command="Delete that file, or pull the reference with --update.",
                path=str(path),
            ) from error


def _written(pair: Pair) -> dict[str, Any]:
    source = pair.target.pieces[0].sources[0]
    assert isinstance(source, HubSource)
    return {
        "format": FORMAT,
        "reference": pair.name,
        "repo": source.repo,
        "revision": source.revision,
        "licence": pair.licence,
        "files": [
            {"path": _path_in_repo(piece), "bytes": piece.bytes, "sha256": piece.sha256}
            for piece in pair.target.pieces
        ],
    }


def _path_in_repo(piece: ModelFile) -> str:
    source = piece.sources[0]
    return (source.path if isinstance(source, HubSource) else "") or piece.file


def _pair(data: Any) -> Pair:
    """The pair in a pin's JSON. Raises ValueError, KeyError or TypeError for data of another form."""
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {data['format']!r}, and this localspec knows {FORMAT}")
    files = [(str(file["path"]), file["bytes"], str(file["sha256"])) for file in data["files"]]
    target = hub_model(str(data["repo"]), str(data["revision"]), files)
    return pinned_pair(str(data["reference"]), str(data["licence"]), target)
