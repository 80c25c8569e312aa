"""The shape of a model whose file is not here: what of its header decides how much memory it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localspec.gguf.architectures import HYBRID, RECURRENT
from localspec.gguf.metadata import Metadata

REQUIRED = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count")
OPTIONAL = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "expert_count",
            "expert_used_count", "expert_feed_forward_length")  # fmt: skip
"""Keys of a header, without the architecture in front, as `llama.block_count` has it."""


@dataclass(frozen=True)
class Shape:
    """architecture: as in `general.architecture`. vocabulary: tokens. keys: of `REQUIRED` and `OPTIONAL`."""

    architecture: str
    vocabulary: int
    keys: Mapping[str, int] = field(hash=False)

    def metadata(self, name: str, size: int) -> Metadata:
        """Facts of a file of that name and size in bytes: those that its memory follows from.

        It has no tokens, and the length that it was trained for is not known.
        """
        return Metadata(
            path=Path(name),
            size_bytes=size,
            architecture=self.architecture,
            name=Path(name).stem,
            file_type="unknown",
            n_vocab=self.vocabulary,
            n_ctx_train=0,
            n_layer=self.keys["block_count"],
            n_embd=self.keys["embedding_length"],
            n_swa=0,
            is_recurrent=self.architecture in RECURRENT,
            is_hybrid=self.architecture in HYBRID,
            tokenizer_model="",
            tokenizer_pre="",
            tokens=(),
            token_types=b"",
            bos_id=None,
            eos_id=None,
            add_bos=False,
            add_eos=False,
            chat_template=None,
            key_values={f"{self.architecture}.{key}": value for key, value in self.keys.items()},
        )

    def differences(self, metadata: Metadata) -> list[str]:
        """What the file itself says otherwise, as clauses; [] where the shape is right."""
        found = {key: metadata.key_values.get(f"{metadata.architecture}.{key}") for key in self.keys}
        said = {"architecture": metadata.architecture, "vocabulary": metadata.n_vocab, **found}
        ours = {"architecture": self.architecture, "vocabulary": self.vocabulary, **self.keys}
        return [f"{key} is {said[key]}, not {value}" for key, value in ours.items() if said[key] != value]
