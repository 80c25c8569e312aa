"""The tokenizer part of a GGUF file, with llama.cpp's defaults where the file is silent."""

from __future__ import annotations

import re
from dataclasses import dataclass

from localspec.gguf.reader import Scalar
from localspec.gguf.tensors import GGUFFault

_DEFAULT_IDS: dict[str, tuple[int | None, int | None]] = {
    "llama": (1, 2),
    "gpt2": (11, 11),
    "plamo2": (1, 2),
}
_BOS_BY_PRE = frozenset(
    {
        "chameleon",
        "falcon-h1",
        "falcon3",
        "jina-v5-nano",
        "lfm2",
        "llama-bpe",
        "llama-v3",
        "llama3",
        "midm-2.0",
        "pixtral",
        "tekken",
    }
)
_GEMMA4_PRE = frozenset({"gemma4", "granite-embed-multi-311m"})


_UNKNOWN_OR_CONTROL = re.compile(rb"[\x02\x03]")
_CONTROL_BY_NAME = frozenset(
    {
        b"</s>",
        b"<EOT>",
        b"<end_of_turn>",
        b"<end_of_utterance>",
        b"<eos>",
        b"<start_of_turn>",
        b"<turn|>",
        b"<|calls|>",
        b"<|call|>",
        b"<|channel|>",
        b"<|constrain|>",
        b"<|end_of_text|>",
        b"<|endoftext|>",
        b"<|end|>",
        b"<|eom_id|>",
        b"<|eot_id|>",
        b"<|flush|>",
        b"<|im_end|>",
        b"<|im_start|>",
        b"<|message|>",
        b"<|return|>",
        b"<|start|>",
        b"<|tool_response>",
        b"[EOS]",
        b"[EOT]",
        b"[e~[",
        b"_<EOT>",
    }
)
"""What llama.cpp takes for a control token by its text alone, and what opens a turn."""

_ENDS_BY_NAME = frozenset(
    {
        b"</s>",
        b"<EOT>",
        b"<end_of_turn>",
        b"<end_of_utterance>",
        b"<eos>",
        b"<turn|>",
        b"<|calls|>",
        b"<|call|>",
        b"<|end_of_text|>",
        b"<|endoftext|>",
        b"<|end|>",
        b"<|eom_id|>",
        b"<|eot_id|>",
        b"<|flush|>",
        b"<|im_end|>",
        b"<|return|>",
        b"<|tool_response>",
        "<｜end▁of▁sentence｜>".encode(),
        b"[EOS]",
        b"[EOT]",
        b"[e~[",
        b"_<EOT>",
    }
)
"""What llama.cpp takes for an end of generation by its text alone."""
_INFILL_ENDS = {
    "fim_pad": (b"<|fim_pad|>", b"<fim-pad>", b"<fim_pad>", b"<PAD>", b"[PAD]"),
    "fim_rep": (b"<|fim_repo|>", b"<|repo_name|>", b"<fim-repo>", b"<REPO>", b"<reponame>"),
    "fim_sep": (b"<|file_sep|>",),
}
"""Ends too: one id of each, by its key in the file, or else by its text."""


@dataclass(frozen=True)
class TokenizerFacts:
    """tokens: the bytes of each entry as llama.cpp reads it, by id. token_types: LLAMA_TOKEN_TYPE of each, a byte,
    or b"". bos_id, eos_id: None where the model has none.
    """

    model: str
    pre: str
    tokens: tuple[bytes, ...]
    token_types: bytes
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool


def tokenizer_facts(scalars: dict[str, Scalar], tokens: tuple[bytes, ...], types: bytes) -> TokenizerFacts:
    """The tokenizer that a file's key-values describe. types: the array of token types, 32-bit numbers, or b"".

    Raises GGUFFault where there is no tokenizer, or one on which llama.cpp would end the process.
    """
    model, pre = scalars.get("tokenizer.ggml.model"), scalars.get("tokenizer.ggml.pre", "")
    if not isinstance(model, str) or model in ("", "none", "no_vocab"):
        raise GGUFFault("it has no tokenizer (tokenizer.ggml.model)")
    if not tokens:
        raise GGUFFault("it has no vocabulary (tokenizer.ggml.tokens)")
    tokens = _as_read(tokens)
    pre = "gemma4" if model == "gemma4" else str(pre)
    _check_vocabulary(model, tokens)
    if types and len(types) < 4 * len(tokens):
        raise GGUFFault(f"it has {len(tokens)} tokens, but types for {len(types) // 4} of them")
    bos_default, eos_default = _DEFAULT_IDS.get(model, (None, None))
    bos_id = _special_id(scalars, "bos", bos_default, len(tokens))
    eos_id = _special_id(scalars, "eos", eos_default, len(tokens))
    add_bos = bool(scalars.get("tokenizer.ggml.add_bos_token", model == "llama" or pre in _BOS_BY_PRE))
    add_bos = add_bos or pre in _GEMMA4_PRE
    add_eos = bool(scalars.get("tokenizer.ggml.add_eos_token", False))
    if (add_bos and bos_id is None) or (add_eos and eos_id is None):
        missing = "BOS" if add_bos and bos_id is None else "EOS"
        raise GGUFFault(f"its tokenizer adds {missing} tokens, and it has none")
    return TokenizerFacts(model, pre, tokens, types[::4][: len(tokens)], bos_id, eos_id, add_bos, add_eos)


def special_texts(tokens: tuple[bytes, ...], token_types: bytes) -> frozenset[str]:
    """Texts that would become a control token if a prompt were tokenized with special tokens parsed.

    Control tokens by type, and those that llama.cpp takes for one by name. User-defined tokens (`<think>`,
    `<tool_call>`) are ordinary text to their own tokenizers and stay so here.
    """
    found = {tokens[match.start()] for match in _UNKNOWN_OR_CONTROL.finditer(token_types)}
    found |= _CONTROL_BY_NAME.intersection(tokens)
    return frozenset(token.decode("utf-8", errors="replace") for token in found)


def eog_ids(scalars: dict[str, Scalar], tokens: tuple[bytes, ...], eos_id: int | None) -> frozenset[int]:
    """Every id at which llama.cpp ends a generation."""
    names = _ENDS_BY_NAME.union(*_INFILL_ENDS.values())
    found = {text: token for token, text in enumerate(tokens) if text in names}
    ends = {token for text, token in found.items() if text in _ENDS_BY_NAME}
    if {b"<|call|>", b"<|calls|>"} & found.keys() and {b"<|return|>", b"<|flush|>"} & found.keys():
        ends.discard(found.get(b"<|end|>", -1))  # ends a part of an answer there
    if b"<|tool_response>" in found:
        ends.discard(found.get(b"</s>", -1))
    others = {eos_id, *(_special_id(scalars, key, None, len(tokens)) for key in ("eot", "eom"))}
    for key, texts in _INFILL_ENDS.items():
        ids = [found[text] for text in texts if text in found]
        others.add(_special_id(scalars, key, min(ids, default=None), len(tokens)))
    return frozenset(token for token in ends | others if token is not None)


def _special_id(scalars: dict[str, Scalar], which: str, default: int | None, n_vocab: int) -> int | None:
    """An id outside the vocabulary counts as absent, as in llama.cpp."""
    given = scalars.get(f"tokenizer.ggml.{which}_token_id")
    for token in (given, default):
        if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < n_vocab:
            return token
    return None


def _as_read(tokens: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The entries as llama.cpp has them: C strings, which end at a NUL, and a name of its own for an empty one."""
    if b"\0" in b"".join(tokens):
        tokens = tuple(token.partition(b"\0")[0] for token in tokens)
    if b"" in tokens:
        tokens = tuple(token or b"[EMPTY_%d]" % index for index, token in enumerate(tokens))
    return tokens


def _check_vocabulary(model: str, tokens: tuple[bytes, ...]) -> None:
    distinct = set(tokens)
    if len(distinct) != len(tokens):
        raise GGUFFault(f"its vocabulary has the token {_first_repeated(tokens)} twice")
    if model == "llama":
        for byte in range(256):
            if b"<0x%02X>" % byte not in distinct and bytes((byte,)) not in distinct:
                raise GGUFFault(f"its vocabulary has no token for the byte 0x{byte:02X}")


def _first_repeated(tokens: tuple[bytes, ...]) -> str:
    seen: set[bytes] = set()
    for token in tokens:
        if token in seen:
            return repr(token.decode("utf-8", errors="replace"))
        seen.add(token)
    return "''"
