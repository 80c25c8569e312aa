"""Some hundred bad model files, each given to the engine as target and as draft beside a good one.

A program of its own, because the fault looked for ends the process: `python -m tests.fuzz FOLDER`. It prints what
became of them as JSON; the file `current` in the folder names the last one tried.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf

from tests.tinygguf import write_llama

FOREIGN = {
    "empty": b"",
    "html": b"<!DOCTYPE html><html><body>Sign in</body>",
    "zip": b"PK\x03\x04" + bytes(40),
    "gzip": b"\x1f\x8b\x08" + bytes(40),
    "safetensors": struct.pack("<Q", 900) + b'{"__metadata__":{}}',
    "git lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00",
    "old ggml": b"lmgg" + bytes(20),
    "zeros": bytes(4096),
    "json": b'{"error": "not found"}',
    "text": b"Invalid username or password.",
    "magic alone": b"GGUF",
    "swapped": b"FUGG" + bytes(60),
    "noise": random.Random(1).randbytes(4096),
}
NUMBERS = (0, 1, 3, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1)
Span = tuple[str, int, int]


def variants(good: Path, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Names and contents."""
    whole, reader = good.read_bytes(), gguf.GGUFReader(good)
    yield from FOREIGN.items()
    for cut in sorted(rng.sample(range(5, reader.data_offset), 40)):
        yield f"cut at {cut}", whole[:cut]
    for cut in (reader.data_offset, len(whole) // 2, len(whole) - 1):
        yield f"cut in the weights at {cut}", whole[:cut]
    for number in NUMBERS:
        for name, at in (("tensors", 8), ("key-values", 16)):
            yield f"{number} {name}", whole[:at] + struct.pack("<Q", number) + whole[at + 8 :]
    for what, start, size in _spans(reader, rng):
        yield from _changed(whole, what, start, size, rng)
    for _ in range(80):
        at, bit = rng.randrange(4, reader.data_offset), rng.randrange(8)
        yield f"bit {bit} of byte {at}", whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :]


def _spans(reader: Any, rng: random.Random) -> list[Span]:
    """Where the parts of key-values and of tensor infos lie: lengths, names, types, shapes, offsets, values."""
    found = []
    rows = [
        (f"key {field.name}", field) for field in reader.fields.values() if not field.name.startswith("GGUF.")
    ]
    rows += [(f"tensor {tensor.name}", tensor.field) for tensor in reader.tensors]
    for what, field in rows:
        at = field.offset
        spans = []
        for number, part in enumerate(field.parts):
            spans.append((f"part {number} of {what}", at, part.nbytes))
            at += part.nbytes
        found += spans if len(spans) < 12 else spans[:5] + rng.sample(spans[5:], 6)
    return found


def _changed(
    whole: bytes, what: str, start: int, size: int, rng: random.Random
) -> Iterator[tuple[str, bytes]]:
    """Two changes to one part: to a number, another one; else to one of its bytes."""
    for _ in range(2):
        if size in (4, 8):
            number = rng.choice(NUMBERS) & ((1 << 8 * size) - 1)
            new, words = number.to_bytes(size, "little"), f"is {number}"
        else:
            new, words = bytearray(whole[start : start + size]), "has another byte"
            new[rng.randrange(size)] = rng.randrange(256)
        yield f"{what} {words}", whole[:start] + new + whole[start + size :]


class Alive:
    """Counts what llama.cpp holds: models and contexts made and not freed."""

    def __init__(self) -> None:
        from localspec.llama import backend

        self.count = Counter[str]()
        library = backend.library()
        for made, freed in (
            ("llama_model_load_from_file", "llama_model_free"),
            ("llama_init_from_model", "llama_free"),
        ):
            setattr(library, made, self._counting(getattr(library, made), made, 1))
            setattr(library, freed, self._counting(getattr(library, freed), made, -1))

    def _counting(self, function: Any, what: str, step: int) -> Any:
        def call(*arguments: Any) -> Any:
            result = function(*arguments)
            if step < 0 or result:
                self.count[what] += step
                self.count["loads"] += step > 0
            return result

        return call

    @property
    def leaked(self) -> int:
        return sum(count for what, count in self.count.items() if what != "loads")


def main(folder: Path) -> None:
    from localspec import LLM
    from localspec.errors import LocalspecError

    good = {role: write_llama(folder / f"{role}.gguf", seed=1, n_layer=1) for role in ("target", "draft")}
    alive, outcomes, faults = Alive(), Counter[str](), []
    bad, freed_beside = folder / "bad.gguf", 0
    for name, content in variants(good["target"], random.Random(5)):
        bad.write_bytes(content)
        for role in good:
            (folder / "current").write_text(f"{name} as {role}", encoding="utf-8")
            files, loads = {**good, role: bad}, alive.count["loads"]
            try:
                with LLM.from_files(**files, n_ctx=64, draft_tokens=2, prepare_draft=False, threads=1) as llm:
                    assert alive.leaked == 4, "two models and two contexts are counted while they are held"
                    llm.generate("ab", max_tokens=2)
                outcomes["loaded"] += 1
            except LocalspecError as error:
                outcomes[type(error).__name__] += 1
                freed_beside += alive.count["loads"] > loads
                if not error.message or "\n" in error.message:
                    faults.append(f"{name} as {role}: {error.message!r}")
            except Exception as error:
                faults.append(f"{name} as {role}: {type(error).__name__}: {error}")
            if alive.leaked:
                faults.append(f"{name} as {role}: {dict(alive.count)} left")
                alive.count.subtract({what: count for what, count in alive.count.items() if what != "loads"})
    print(json.dumps({"outcomes": outcomes, "freed_beside": freed_beside, "faults": faults}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
