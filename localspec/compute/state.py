"""The cells of one sequence as bytes, and the checks that keep wrong bytes away from a compute library.

Layout: magic (16 bytes), BLAKE2b-256 of all that follows (32), length of the facts (u32, little endian), the facts
(JSON: whose cells these are), the library's own copy of the cells.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

from localspec.errors import InvalidRequest, StateError

Facts = dict[str, object]
MAGIC = b"localspec-state1"
_DIGEST = 32
_LENGTH = struct.Struct("<I")
_HEAD = len(MAGIC) + _DIGEST + _LENGTH.size
_SAMPLES, _SAMPLE_BYTES = 32, 4096
_ANOTHER = {
    "model": "another model",
    "build": "another build of the compute library",
    "cache_type_k": "another K cache type",
    "cache_type_v": "another V cache type",
    "repack": "weights arranged in another way",
}


def weights_digest(path: Path, size: int) -> str:
    """Tells models apart: the size, and samples over the whole file (fine-tunes differ in every tensor).

    size: bytes of all parts; only the first part is read. Raises `StateError` if the file is gone.
    """
    digest = hashlib.blake2b(str(size).encode("ascii"), digest_size=16)
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            for index in range(_SAMPLES):
                file.seek(index * max(end - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise StateError(
            f"{path} cannot be read to tell whose state this is: {error.strerror}.", "Put the file back."
        ) from error
    return digest.hexdigest()


def pack(facts: Facts, cells: bytes | bytearray) -> bytes:
    """One block of bytes for `unpack`."""
    written = json.dumps(facts).encode("ascii")
    body = [_LENGTH.pack(len(written)), written, cells]
    return b"".join([MAGIC, _digest(*body), *body])


def unpack(data: bytes) -> tuple[Facts, memoryview]:
    """Facts and cells of a block that is whole. Raises `InvalidRequest` for no bytes, `StateError` for wrong ones."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidRequest(
            f"The saved state is {type(data).__name__}.",
            "Give the bytes that save_state returned.",
            name="data",
        )
    view = memoryview(data).cast("B")
    if len(view) < _HEAD or view[: len(MAGIC)] != MAGIC:
        raise StateError(
            f"These {len(view)} bytes are no saved state of this version of localspec.", "Save it again."
        )
    body = view[len(MAGIC) + _DIGEST :]
    if _digest(body) != view[len(MAGIC) : len(MAGIC) + _DIGEST]:
        raise StateError(
            f"The saved state of {len(view)} bytes is damaged: its checksum does not fit.", "Save it again."
        )
    (length,) = _LENGTH.unpack_from(body)
    cells = body[_LENGTH.size + length :]
    facts: Facts = json.loads(bytes(body[_LENGTH.size : _LENGTH.size + length]))
    return facts, cells


def check_owner(found: Facts, ours: Facts, n_ctx: int) -> int:
    """The number of cells, if the state belongs here. Raises `StateError` naming what differs."""
    for name, another in _ANOTHER.items():
        if found.get(name) != ours[name]:
            raise StateError(
                f"The saved state belongs to {another}: {name} is {found.get(name)}, here {ours[name]}.",
                "Read the prompt again.",
                name=name,
            )
    length = found.get("length")
    if not isinstance(length, int) or not 0 <= length <= n_ctx:
        raise StateError(
            f"The saved state has {length} tokens and the context {n_ctx}.",
            "Load the model with a larger context.",
            length=length,
            n_ctx=n_ctx,
        )
    return length


def _digest(*parts: bytes | bytearray | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        digest.update(part)
    return digest.digest()
