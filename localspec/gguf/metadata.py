"""What a GGUF file says about its model, in milliseconds and without loading it.

`read_metadata` is also the guard of the C library: whatever would end the process inside llama.cpp is a
ModelFileError here.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf.architectures import (
    ANOTHER_DRAFT,
    HYBRID,
    LOOKS_AHEAD,
    NOT_A_TEXT_GENERATOR,
    OTHER_HEADS,
    RECURRENT,
)
from localspec.gguf.file_kind import describe
from localspec.gguf.limits import check_limits
from localspec.gguf.reader import GGUFHeader, Numbers, Scalar, parse_header, read_header
from localspec.gguf.split import check_part, check_tensor_count, count_of, further_parts, missing_part
from localspec.gguf.tensors import GGUFFault
from localspec.gguf.token_texts import KNOWN_KINDS, TokenTexts, token_texts
from localspec.gguf.tokenizer_facts import TokenizerFacts, eog_ids, special_texts, tokenizer_facts
from localspec.gguf.types import FILE_TYPES

_TOKENS, _TOKEN_TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_WANTED = frozenset({_TOKENS, _TOKEN_TYPES})
_DAMAGED = "Download the file again."
_OTHER_FILE = "Choose a GGUF file of a language model."


@dataclass(frozen=True)
class Metadata:
    """The facts of one model file; of a split model the first part is the file, and all parts count.

    size_bytes: of the file, or of all parts together.
    n_swa: width of the sliding attention window in tokens as the file states it, 0 for none.
    is_recurrent, is_hybrid: all, or some, of the memory is a running state that cannot be rolled back.
    tokens: the bytes of each vocabulary entry as the tokenizer spells it, by id.
    token_types: one byte each (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte), or b"".
    bos_id, eos_id, add_bos, add_eos: with llama.cpp's defaults where the file is silent.
    n_vocab: tokens of the vocabulary. n_ctx_train: tokens of context trained for. n_embd: width of a hidden state.
    key_values: every scalar of the file. numbers: its short arrays of numbers, such as one for each layer.
    """

    path: Path
    size_bytes: int
    architecture: str
    name: str
    file_type: str
    n_vocab: int
    n_ctx_train: int
    n_layer: int
    n_embd: int
    n_swa: int
    is_recurrent: bool
    is_hybrid: bool
    tokenizer_model: str
    tokenizer_pre: str
    tokens: tuple[bytes, ...] = field(repr=False)
    token_types: bytes = field(repr=False)
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool
    chat_template: str | None = field(repr=False)
    key_values: dict[str, Scalar] = field(repr=False)
    numbers: dict[str, Numbers] = field(default_factory=dict, repr=False)

    def per_layer(self, name: str, default: int = 0) -> tuple[int, ...]:
        """A figure of the architecture for each layer: a list in the file, or one that holds for all."""
        key = f"{self.architecture}.{name}"
        found = self.numbers.get(key) or (self.key_values.get(key, default),) * self.n_layer
        return tuple(value if isinstance(value, int) else default for value in found)

    @cached_property
    def special_texts(self) -> frozenset[str]:
        """Texts that would become a control token in a prompt whose special tokens are parsed."""
        return special_texts(self.tokens, self.token_types)

    @cached_property
    def token_texts(self) -> TokenTexts | None:
        """The bytes that each token stands for; None for a kind of tokenizer whose tokens are not known to be bytes."""
        if self.tokenizer_model not in KNOWN_KINDS:
            return None
        return token_texts(self.tokenizer_model, self.tokens, self.token_types, self.special_texts)

    @cached_property
    def eog_ids(self) -> frozenset[int]:
        """Every id that ends a generation, as llama.cpp finds them."""
        return eog_ids(self.key_values, self.tokens, self.eos_id)


def read_metadata(path: Path) -> Metadata:
    """Reads and checks the GGUF file at `path`, and what belongs to it if it is the first part of a split model.

    Raises ModelFileError, naming the path and the fact.
    """
    size = _size_of_file(path)
    with _faults(path):
        header = read_header(path, keep=_WANTED)
        others = _other_parts(path, header)
        check_tensor_count([header, *(part for _, part in others)])
        return _metadata(path, size + sum(part_size for part_size, _ in others), header)


def parse_metadata(head: bytes, size: int, path: Path, total: int) -> Metadata:
    """The facts of a file elsewhere, of `size` bytes, from its first bytes `head`; `path` names it in errors.

    total: bytes of all its parts. Raises ModelFileError, or HeaderIncomplete if `head` must be longer.
    """
    _check_kind(head, path)
    with _faults(path):
        return _metadata(path, total, parse_header(head, size, keep=_WANTED))


def read_headers(path: Path, *, keep: frozenset[str] = frozenset()) -> list[GGUFHeader]:
    """The headers of all parts of a model that `read_metadata` accepts, in order. Raises ModelFileError."""
    with _faults(path):
        header = read_header(path, keep=keep)
        return [header, *(read_header(part, keep=keep) for part in further_parts(path, header))]


def _other_parts(path: Path, header: GGUFHeader) -> list[tuple[int, GGUFHeader]]:
    """Size and header of each further part, checked: what would end the process may stand there too."""
    found = []
    for number, part in enumerate(further_parts(path, header), 2):
        if not part.exists():
            raise missing_part(path, part)
        size = _size_of_file(part)
        with _faults(part):
            part_header = read_header(part, keep=frozenset())
            check_part(part_header, number, count_of(header))
        found.append((size, part_header))
    return found


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Turns what is wrong with the bytes of `path`, or with reading them, into ModelFileError."""
    try:
        yield
    except GGUFFault as fault:
        raise ModelFileError(f"{path} is not a usable GGUF file: {fault}.", _DAMAGED, path=path) from None
    except OSError as error:
        raise _unreadable(path, error) from error


def _size_of_file(path: Path) -> int:
    """Size in bytes of what is there and is a GGUF file by its first bytes."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError(f"{path} is a directory.", "Give the path of a GGUF file in it.", path=path)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path} is not a regular file.", _OTHER_FILE, path=path)
        with path.open("rb") as file:
            head = file.read(512)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unreadable(path, error) from error
    _check_kind(head, path)
    return status.st_size


def _check_kind(head: bytes, path: Path) -> None:
    if not head:
        raise ModelFileError(f"{path} is empty.", _DAMAGED, path=path)
    if head[:4] != b"GGUF":
        kind, remedy = describe(head[:512])
        raise ModelFileError(f"{path} is not a GGUF file: it looks like {kind}.", remedy, path=path)


def _unreadable(path: Path, error: Exception) -> ModelFileError:
    if isinstance(error, FileNotFoundError):
        return ModelFileError(f"There is no file {path}.", "Check the path.", path=path)
    reason = getattr(error, "strerror", None) or error
    return ModelFileError(f"{path} cannot be read: {reason}.", "Check its permissions.", path=path)


def _metadata(path: Path, size: int, header: GGUFHeader) -> Metadata:
    scalars = {
        key: value for key, value in header.key_values.items() if not isinstance(value, (tuple, bytes))
    }
    architecture = _architecture(path, scalars, header)
    tokens, types = header.key_values.get(_TOKENS), header.key_values.get(_TOKEN_TYPES)
    check_limits(architecture, scalars, header.numbers)
    vocabulary = tokenizer_facts(
        scalars, tokens if isinstance(tokens, tuple) else (), types if isinstance(types, bytes) else b""
    )
    return _assemble(path, size, architecture, scalars, header.numbers, vocabulary)


def _architecture(path: Path, scalars: dict[str, Scalar], header: GGUFHeader) -> str:
    """The architecture of a whole language model; anything else is refused with what it is."""

    def refuse(what: str, remedy: str = _OTHER_FILE) -> ModelFileError:
        return ModelFileError(f"{path} is {what}.", remedy, path=path)

    architecture = scalars.get("general.architecture")
    kind = scalars.get("general.type", "model")
    if kind == "mmproj":
        architecture = "clip"
    elif kind != "model":
        raise refuse(f"of the kind {kind!r}, not a model")
    if not isinstance(architecture, str) or not architecture:
        raise GGUFFault("it names no architecture (general.architecture)")
    if architecture in NOT_A_TEXT_GENERATOR:
        remedy = ANOTHER_DRAFT if architecture in OTHER_HEADS else _OTHER_FILE
        raise refuse(NOT_A_TEXT_GENERATOR[architecture], remedy)
    if scalars.get(f"{architecture}.attention.causal") is False:
        raise refuse(f"{LOOKS_AHEAD} ({architecture}.attention.causal is false)")
    if not header.tensors and count_of(header) == 1:
        raise refuse("a vocabulary without weights")
    return architecture


def _assemble(
    path: Path,
    size: int,
    architecture: str,
    scalars: dict[str, Scalar],
    numbers: dict[str, Numbers],
    vocabulary: TokenizerFacts,
) -> Metadata:
    name, template = scalars.get("general.name"), scalars.get("tokenizer.chat_template")
    return Metadata(
        path=path,
        size_bytes=size,
        architecture=architecture,
        name=name if isinstance(name, str) and name else path.stem,
        file_type=FILE_TYPES.get(_whole(scalars, "general.file_type", -1), "unknown"),
        n_vocab=len(vocabulary.tokens),
        n_ctx_train=_whole(scalars, f"{architecture}.context_length"),
        n_layer=_whole(scalars, f"{architecture}.block_count"),
        n_embd=_whole(scalars, f"{architecture}.embedding_length"),
        n_swa=_whole(scalars, f"{architecture}.attention.sliding_window", 0),
        is_recurrent=architecture in RECURRENT,
        is_hybrid=architecture in HYBRID,
        tokenizer_model=vocabulary.model,
        tokenizer_pre=vocabulary.pre,
        tokens=vocabulary.tokens,
        token_types=vocabulary.token_types,
        bos_id=vocabulary.bos_id,
        eos_id=vocabulary.eos_id,
        add_bos=vocabulary.add_bos,
        add_eos=vocabulary.add_eos,
        chat_template=template if isinstance(template, str) and template else None,
        key_values=scalars,
        numbers=numbers,
    )


def _whole(scalars: dict[str, Scalar], key: str, default: int | None = None) -> int:
    value = scalars.get(key, default)
    if value is None:
        raise GGUFFault(f"the key {key!r} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        raise GGUFFault(f"the key {key!r} is {str(value)[:40]!r}, not a whole number")
    return value
