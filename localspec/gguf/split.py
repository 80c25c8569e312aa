"""Split models: GGUF files `NAME-00001-of-00003.gguf` and so on, of which the first has the header of the whole.

llama.cpp is given the first part and opens the others beside it, by these names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf.reader import UINT16, GGUFHeader
from localspec.gguf.tensors import GGUFFault

_NAME = re.compile(r"(?s)(.+)-(\d{5})-of-(\d{5})\.gguf")
_TOGETHER = "Put all parts into one folder, under the names they were published with."


@dataclass(frozen=True)
class PartName:
    """What the name of a part says: `stem`, and that it is part `number` (from 1) of `count`."""

    stem: str
    number: int
    count: int

    @property
    def all_names(self) -> list[str]:
        """The names of all parts, in order."""
        return [f"{self.stem}-{i:05}-of-{self.count:05}.gguf" for i in range(1, self.count + 1)]


def part_name(name: str) -> PartName | None:
    """The parsed name of a part; None for any other name."""
    match = _NAME.fullmatch(name)
    return PartName(match[1], int(match[2]), int(match[3])) if match else None


def count_of(header: GGUFHeader) -> int:
    """How many parts the model of this header has; 1 for a whole file. Raises GGUFFault."""
    return _number(header, "split.count", 1)


def further_parts(path: Path, header: GGUFHeader) -> list[Path]:
    """Where the other parts must lie, in order; [] for a whole file.

    Raises ModelFileError for a part that is not the first, or whose name does not lead to the others.
    """
    count, number = count_of(header), _number(header, "split.no", 0) + 1
    if count <= 1:
        return []
    what = f"{path} is part {number} of {count} of a split model"
    name = part_name(path.name)
    if number != 1:
        first = f" {name.all_names[0]}" if name else ""
        raise ModelFileError(f"{what}.", f"Give its first part{first}.", path=path)
    if name is None or (name.number, name.count) != (1, count):
        wanted = PartName("NAME", 1, count).all_names[0]
        raise ModelFileError(
            f"{what}, and its name does not have the form {wanted}, by which the others are found.",
            _TOGETHER,
            path=path,
        )
    return [path.with_name(part) for part in name.all_names[1:]]


def missing_part(path: Path, missing: Path) -> ModelFileError:
    """The error for a split model whose part `missing` is not there."""
    return ModelFileError(f"{path} is incomplete: {missing.name} is not beside it.", _TOGETHER, path=missing)


def check_part(header: GGUFHeader, number: int, count: int) -> None:
    """Raises GGUFFault unless it is the header of part `number` of `count`, as llama.cpp demands."""
    kind = header.value_types.get("split.no")
    if kind != UINT16:  # llama.cpp ends the process here
        raise GGUFFault("its split.no is missing or not a 16-bit number")
    found = _number(header, "split.no", 0) + 1
    if found != number or count_of(header) != count:
        raise GGUFFault(f"it says to be part {found} of {count_of(header)}, not {number} of {count}")


def check_tensor_count(headers: Sequence[GGUFHeader]) -> None:
    """Raises GGUFFault if parts that belong together do not hold the tensors that the first one promises."""
    found = sum(len(header.tensors) for header in headers)
    promised = _number(headers[0], "split.tensors.count", found)
    if found != promised:
        raise GGUFFault(f"its parts hold {found} tensors, not {promised}")


def _number(header: GGUFHeader, key: str, default: int) -> int:
    value = header.key_values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise GGUFFault(f"the key {key!r} is {str(value)[:40]!r}, not a whole number")
    return value
