"""Writing a pair file (TOML), in the form that `pairfile` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from localspec.pairs.pair import HubSource, LocalSource, ModelFile, Pair, Source


def pair_text(pair: Pair) -> str:
    """The text of the pair's file: `read_pair` gives the same pair back."""
    fields = {
        "name": pair.name,
        "summary": pair.summary,
        "licence": pair.licence,
        "context": pair.context,
        "tags": list(pair.tags),
    }
    lines = [*_lines(fields), *_file("target", pair.target)]
    if pair.draft is not None:
        lines += _file("draft", pair.draft)
    return "\n".join(lines) + "\n"


def _file(role: str, file: ModelFile) -> Iterator[str]:
    """A table, or one for each part of a split model."""
    for part in file.parts:
        yield from ("", f"[[{role}.part]]", *_whole(f"{role}.part", part))
    if not file.parts:
        yield from ("", f"[{role}]", *_whole(role, file))


def _whole(role: str, file: ModelFile) -> Iterator[str]:
    yield from _lines({"file": file.file, "bytes": file.bytes, "sha256": file.sha256})
    for source in file.sources:
        yield from ("", f"[[{role}.source]]")
        yield from _lines({"kind": source.kind, **_source(source)})


def _source(source: Source) -> dict[str, object]:
    if isinstance(source, LocalSource):
        return {"path": source.path}
    if isinstance(source, HubSource):
        path = {"path": source.path} if source.path else {}
        return {"repo": source.repo, "revision": source.revision, **path}
    return {
        "packages": source.packages,
        "version": source.version,
        "parts": source.parts,
        "member": source.member,
    }


def _lines(fields: Mapping[str, object]) -> Iterator[str]:
    # What JSON writes for strings, numbers and lists of strings is TOML too, save one control character.
    for key, value in fields.items():
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
