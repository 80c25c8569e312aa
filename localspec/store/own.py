"""The user's own pairs: TOML files in the folder `pairs` of localspec's folder, in the form of the built-in ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from localspec.errors import CatalogueError, InvalidRequest, UnknownPair
from localspec.gguf.metadata import Metadata
from localspec.gguf.split import part_name
from localspec.pairs import catalogue
from localspec.pairs.check import check_pair
from localspec.pairs.pair import LocalSource, ModelFile, Pair, split_model
from localspec.pairs.pairfile import FILE_NAME, PAIR_NAME, read_pair
from localspec.pairs.pairtext import pair_text
from localspec.store.copying import hashed
from localspec.store.store import Store
from localspec.system.disk import disk_errors, write_durably
from localspec.system.locks import locked
from localspec.system.progress import ProgressCallback, Reporter

_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows keeps for devices, with any suffix."""


def check_name(name: str, store: Store) -> None:
    """Raises InvalidRequest (`name`) if a user's pair cannot have that name, or another pair has it."""
    if not PAIR_NAME.fullmatch(name) or _RESERVED.fullmatch(name):
        raise InvalidRequest(
            f"A pair cannot be named {name!r}.",
            "Use small letters a to z, digits, and after the first one also '.', '_' and '-'.",
            name=name,
        )
    with suppress(UnknownPair):
        catalogue.pair(name, store.home)
        raise _taken(name, store)


def own_file(path: Path, show: ProgressCallback | None, known: Sequence[ModelFile] = ()) -> ModelFile:
    """The file at `path`, or the split model whose first part it is, hashed.

    known: where one of these has the same sha256, its name and other sources are taken over. Raises StoreError.
    """
    name = part_name(path.name)
    if name is None or name.count == 1:
        return _hashed(path, show, known)
    parts = [_hashed(path.with_name(part), show, known) for part in name.all_names]
    # llama.cpp finds the parts by their names.
    named = [replace(part, file=part_of) for part, part_of in zip(parts, name.all_names, strict=True)]
    return split_model(named)


def _hashed(path: Path, show: ProgressCallback | None, known: Sequence[ModelFile]) -> ModelFile:
    path = path.absolute()
    size = path.stat().st_size
    sha256 = hashed(path, Reporter(path.name, size, show))
    same = next((file for file in known if file.sha256 == sha256), None)
    name, sources = (file_name(path), ()) if same is None else (same.file, same.sources)
    local = LocalSource(str(path))
    return ModelFile(name, size, sha256, (local, *(source for source in sources if source != local)))


def file_name(path: Path) -> str:
    """The file's name, in a form that every file system takes."""
    if FILE_NAME.fullmatch(path.name) and not _RESERVED.fullmatch(path.name):
        return path.name
    stem = re.sub(r"[^\w.-]+", "-", path.name.removesuffix(".gguf")).strip("-._")
    return f"model-{stem or 'file'}.gguf"


def own_pair(
    name: str,
    files: Sequence[ModelFile],
    models: Sequence[Metadata],
    *,
    summary: str = "",
    licence: str = "",
    tags: Sequence[str] = (),
) -> Pair:
    """A pair of a target and perhaps a draft; what is not given is taken from the target's metadata.

    Raises PairingError if the draft does not fit, or the target is none.
    """
    target, draft = (*models, None)[:2]
    assert target is not None, "a target"
    check_pair(target, draft)
    drafting = f" with {draft.name} as its draft" if draft else ", without a draft model"
    return Pair(
        name=name,
        summary=_one_line(summary or target.name + drafting),
        licence=_one_line(licence or str(target.key_values.get("general.license", "")) or "unknown"),
        context=max(target.n_ctx_train, 1),
        tags=tuple(tags),
        target=files[0],
        draft=files[1] if len(files) > 1 else None,
    )


def keep_pair(pair: Pair, store: Store) -> Path:
    """Writes the pair file unless it is there already; returns its path.

    Raises InvalidRequest if the name is taken, StoreError.
    """
    store.prepare()
    path = catalogue.own_folder(store.home) / f"{pair.name}.toml"
    text = _checked_text(pair, path)
    with disk_errors(store.home), locked(store.home / "locks" / "pairs.lock"):
        if path.is_file() and path.read_bytes() == text.encode():
            return path
        check_name(pair.name, store)
        path.parent.mkdir(exist_ok=True)
        write_durably(path, text)
    return path


def forget_pair(name: str, store: Store) -> Path | None:
    """Removes the pair file if it is the user's own; returns its path, or None. Raises StoreError."""
    path = catalogue.own_path(name, store.home)
    if path is None or path.parent != catalogue.own_folder(store.home):
        return None
    with disk_errors(store.home):
        path.unlink(missing_ok=True)
    return path


def _checked_text(pair: Pair, path: Path) -> str:
    """The text of the pair file, checked by reading it back. A path that is not valid Unicode is refused."""
    text = pair_text(pair)
    try:
        text.encode()
        read_pair(text, str(path))
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"A path of the pair {pair.name} is not valid Unicode.", "Rename the file.", name=pair.name
        ) from None
    except CatalogueError as error:
        raise InvalidRequest(error.message, "", name=pair.name) from error
    return text


def _taken(name: str, store: Store) -> InvalidRequest:
    path = catalogue.own_path(name, store.home)
    where = "built in" if path is None else f"in {path}"
    return InvalidRequest(
        f"There is a pair named {name} already, {where}.",
        "Choose another name.",
        command="" if path is None else f"Choose another name, or `localspec rm {name}` first.",
        name=name,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
