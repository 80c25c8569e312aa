"""The front part of a GGUF file: key-values and tensor table, read and checked without the C library.

llama.cpp ends the process on some malformed files, so every length, count and offset is checked here first.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 2 and 3, little-endian).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from localspec.gguf.tensors import MAX_DIMS, GGUFFault, TensorInfo, check_layout, tensor_size

Scalar = int | float | bool | str
Value = Scalar | tuple[bytes, ...] | bytes
Numbers = tuple[int | float | bool, ...]

_MAX_STRING = 1 << 24  # bytes; the longest string in practice is a chat template of some 100 kB
_MAX_STRINGS = 1 << 22  # a vocabulary holds at most some 300 thousand
_MAX_ARRAY_STRING = 1 << 16  # bytes; one token of a vocabulary
_MAX_NUMBERS = 512  # of a short array: one for each layer
_MAX_KEY = 1 << 16
_MAX_TENSOR_NAME = 63
_MIN_KEY_VALUE = 8 + 1 + 4 + 1  # bytes: key length, a key of one letter, value type, a value of one byte
_MIN_TENSOR = 8 + 4 + 4 + 8  # bytes: name length, number of dimensions, type, offset
UINT16 = 2
"""The code of a 16-bit number in `GGUFHeader.value_types`."""

_SCALARS = {code: struct.Struct("<" + letter) for code, letter in enumerate("BbHhIif?")} | {
    code: struct.Struct("<" + letter) for code, letter in ((10, "Q"), (11, "q"), (12, "d"))
}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True)
class GGUFHeader:
    """The front part of one file.

    version: 2 or 3. key_values: scalars, and the arrays asked for: strings as a tuple of bytes, numbers as
    their raw little-endian bytes. array_lengths: elements of each array. numbers: every short array of numbers, such
    as one for each layer. data_offset: where the weights begin. value_types: GGUF's code of each value's type.
    """

    version: int
    key_values: dict[str, Value]
    array_lengths: dict[str, int]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    value_types: dict[str, int]
    numbers: dict[str, Numbers]


class HeaderIncomplete(Exception):
    """The bytes at hand end before the header does, and the file goes on."""


def read_header(path: Path, *, keep: frozenset[str]) -> GGUFHeader:
    """Reads the header of `path`; `keep` names the arrays wanted, every other is only skipped.

    Raises GGUFFault for bytes that are not a whole, well-formed GGUF file, OSError if they cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _header(_Reader(data, len(data)), keep)


def parse_header(head: bytes, size: int, *, keep: frozenset[str]) -> GGUFHeader:
    """The header of a file of `size` bytes that begins with `head`, checked like a file's own.

    Raises GGUFFault, or HeaderIncomplete if `head` must be longer to tell.
    """
    return _header(_Reader(head, size), keep)


def _header(reader: _Reader, keep: frozenset[str]) -> GGUFHeader:
    version, num_tensors, num_key_values = reader.preamble()
    for _ in range(num_key_values):
        reader.key_value(keep)
    alignment = reader.alignment()
    rows = tuple(reader.tensor() for _ in range(num_tensors))
    start = -(-reader.pos // alignment) * alignment if rows else reader.pos
    check_layout(rows, alignment, available=reader.size - start)
    return GGUFHeader(
        version, reader.key_values, reader.array_lengths, rows, start, reader.value_types, reader.numbers
    )


class _Reader:
    """A cursor over the bytes. Nothing is taken before it is known to be there.

    data: the file's bytes from its beginning, perhaps not all; size: how many the file has.
    """

    def __init__(self, data: mmap.mmap | bytes, size: int) -> None:
        self.data = data
        self.size = size
        self.at_hand = len(data)
        self.pos = 0
        self.part = "header"
        self.key_values: dict[str, Value] = {}
        self.array_lengths: dict[str, int] = {}
        self.tensor_names: set[str] = set()
        self.value_types: dict[str, int] = {}
        self.numbers: dict[str, Numbers] = {}

    def preamble(self) -> tuple[int, int, int]:
        """Version, number of tensors, number of key-values."""
        self.skip(4)
        version = self.u32()
        _check_version(version)
        num_tensors, num_key_values = self.u64(), self.u64()
        room = self.size - self.pos
        if num_key_values > room // _MIN_KEY_VALUE:
            raise GGUFFault(f"it claims {num_key_values} key-values, more than {self.size} bytes can hold")
        if num_tensors > room // _MIN_TENSOR:
            raise GGUFFault(f"it claims {num_tensors} tensors, more than {self.size} bytes can hold")
        self.part = "key-values"
        return version, num_tensors, num_key_values

    def key_value(self, keep: frozenset[str]) -> None:
        key = self.text("a key", _MAX_KEY)
        if not key:
            raise GGUFFault("one of its keys is empty")
        if "\0" in key:  # llama.cpp would take it for the key that its beginning is
            raise GGUFFault(f"the key {key!r} holds a NUL")
        if key in self.value_types:
            raise GGUFFault(f"the key {key!r} occurs twice")
        self.value_types[key] = kind = self.u32()
        if kind == _ARRAY:
            self.array(key, keep)
        else:
            self.key_values[key] = self.scalar(key, kind)

    def scalar(self, key: str, kind: int) -> Scalar:
        if kind == _STRING:
            # llama.cpp reads C strings.
            return self.text(f"the value of {key!r}", _MAX_STRING).partition("\0")[0]
        form = _SCALARS.get(kind)
        if form is None:
            raise GGUFFault(f"the key {key!r} has the unknown value type {kind}")
        value: Scalar = form.unpack_from(self.data, self.skip(form.size))[0]
        return value

    def array(self, key: str, keep: frozenset[str]) -> None:
        kind, count = self.u32(), self.u64()
        self.array_lengths[key] = count
        if kind == _STRING:
            self.strings(key, count, keep=key in keep)
            return
        form = _SCALARS.get(kind)
        if form is None:
            what = "is a nested array" if kind == _ARRAY else f"is an array of the unknown type {kind}"
            raise GGUFFault(f"the key {key!r} {what}")
        start = self.skip(form.size * count)
        if count <= _MAX_NUMBERS:
            self.numbers[key] = tuple(value for (value,) in form.iter_unpack(self.data[start : self.pos]))
        if key in keep:
            self.key_values[key] = self.data[start : self.pos]

    def strings(self, key: str, count: int, *, keep: bool) -> None:
        if count > min(_MAX_STRINGS, (self.size - self.pos) // 8):
            raise GGUFFault(f"the key {key!r} claims {count} strings, more than can be")
        try:
            if keep:
                self.key_values[key] = self.read_strings(key, count)
            else:
                self.skip_strings(count)
        except (struct.error, OverflowError, IndexError):  # a length led past the end of the bytes
            raise (self.cut_off() if self.at_hand == self.size else HeaderIncomplete()) from None
        self.skip(0)

    def read_strings(self, key: str, count: int) -> tuple[bytes, ...]:
        """A tight loop: a vocabulary has up to 300 thousand strings, and its merges as many again."""
        data, length_at, pos = self.data, _U64.unpack_from, self.pos
        found: list[bytes] = []
        add = found.append
        for _ in range(count):
            start = pos + 8
            length = length_at(data, pos)[0]
            if length > _MAX_ARRAY_STRING:
                raise GGUFFault(f"the key {key!r} has a string of {length} bytes, more than can be")
            pos = start + length
            add(data[start:pos])
        self.pos = pos
        return tuple(found)

    def skip_strings(self, count: int) -> None:
        data, length_at, pos = self.data, _U64.unpack_from, self.pos
        for _ in range(count):
            pos += 8 + length_at(data, pos)[0]
        self.pos = pos

    def alignment(self) -> int:
        """Bytes to which tensors are padded. The key-values are over when this is called."""
        self.part = "tensor table"
        value = self.key_values.get("general.alignment", 32)
        if self.value_types.get("general.alignment", _UINT32) != _UINT32 or not isinstance(value, int):
            raise GGUFFault("its general.alignment is not a 32-bit number")
        if value.bit_count() != 1:
            raise GGUFFault(f"its general.alignment of {value} is not a power of two")
        return value

    def tensor(self) -> TensorInfo:
        name = self.text("a tensor name", _MAX_TENSOR_NAME)
        if "\0" in name:
            raise GGUFFault(f"the tensor name {name!r} holds a NUL")
        if name in self.tensor_names:
            raise GGUFFault(f"the tensor {name!r} occurs twice")
        self.tensor_names.add(name)
        num_dims = self.u32()
        if num_dims > MAX_DIMS:
            raise GGUFFault(f"the tensor {name!r} has {num_dims} dimensions, at most {MAX_DIMS} are possible")
        shape = tuple(self.u64() for _ in range(num_dims))
        kind = self.u32()
        type_name, num_bytes = tensor_size(name, shape, kind)
        return TensorInfo(name, shape, type_name, self.u64(), num_bytes)

    def text(self, what: str, limit: int) -> str:
        length = self.u64()
        if length > limit:
            raise GGUFFault(f"{what} claims a length of {length} bytes, at most {limit} are possible")
        start = self.skip(length)
        return self.data[start : start + length].decode("utf-8", errors="replace")

    def u32(self) -> int:
        value: int = _U32.unpack_from(self.data, self.skip(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self.data, self.skip(8))[0]
        return value

    def skip(self, num_bytes: int) -> int:
        """Steps over `num_bytes` that must be there; returns where they begin."""
        start = self.pos
        if num_bytes > self.size - start:
            raise self.cut_off()
        self.pos = start + num_bytes
        if self.pos > self.at_hand:
            raise HeaderIncomplete
        return start

    def cut_off(self) -> GGUFFault:
        return GGUFFault(f"it is cut off in the {self.part}: it ends at byte {self.size}")


def _check_version(version: int) -> None:
    if version in (2, 3):
        return
    if version == 1:
        raise GGUFFault("it is GGUF version 1, which llama.cpp no longer reads")
    if version & 0xFFFF == 0 and version != 0:
        raise GGUFFault("it is written in big-endian byte order")
    raise GGUFFault(f"it is GGUF version {version}, and only 2 and 3 are known")
