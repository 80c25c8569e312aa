"""The shape of a model whose file is not here: what of its header decides how much memory it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from localspec.gguf.architectures import HYBRID, RECURRENT
from localspec.gguf.metadata import Metadata

REQUIRED = ("block_count", "embedding_length", "attention.head_count")
OPTIONAL = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "feed_forward_length",
            "expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length",
            "leading_dense_block_count", "full_attention_interval", "nextn_predict_layers", "shortconv.l_cache",
            "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count")  # fmt: skip
"""Keys of a header, without the architecture in front, as `llama.block_count` has it."""
PER_LAYER = ("attention.head_count_kv", "feed_forward_length")
"""Those that may be a list, of a number for each layer."""
WIDTHS = ("feed_forward_length", "expert_feed_forward_length")
"""Keys of which one must be there."""
Figure: TypeAlias = int | tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """architecture: as in `general.architecture`. vocabulary: tokens. keys: of `REQUIRED` and `OPTIONAL`."""

    architecture: str
    vocabulary: int
    keys: Mapping[str, Figure] = field(hash=False)

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
            n_layer=self._number("block_count"),
            n_embd=self._number("embedding_length"),
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
            key_values={
                f"{self.architecture}.{key}": value
                for key, value in self.keys.items()
                if isinstance(value, int)
            },
            numbers={
                f"{self.architecture}.{key}": value
                for key, value in self.keys.items()
                if isinstance(value, tuple)
            },
        )

    def _number(self, key: str) -> int:
        value = self.keys[key]
        return value if isinstance(value, int) else 0

    def differences(self, metadata: Metadata) -> list[str]:
        """What the file itself says otherwise, as clauses; [] where the shape is right."""
        stated = {**metadata.numbers, **metadata.key_values}
        found = {key: stated.get(f"{metadata.architecture}.{key}") for key in self.keys}
        said = {"architecture": metadata.architecture, "vocabulary": metadata.n_vocab, **found}
        ours = {"architecture": self.architecture, "vocabulary": self.vocabulary, **self.keys}
        return [f"{key} is {said[key]}, not {value}" for key, value in ours.items() if said[key] != value]
