"""RemoteEngine: what of an engine is here, where another process computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from localspec.compute.vocabulary import Vocabulary
from localspec.decoding.session import Session
from localspec.engine.libraries import reference
from localspec.errors import RpcError
from localspec.gguf.metadata import Metadata
from localspec.remote.facts import Facts
from localspec.text.template import ChatTemplate


@dataclass(frozen=True)
class RemoteWeights:
    """What is known of weights in another process."""

    metadata: Metadata
    build: str

    @property
    def path(self) -> Path:
        """The file."""
        return self.metadata.path


@dataclass(frozen=True)
class RemoteContext:
    """What is known of a context in another process."""

    weights: RemoteWeights
    n_ctx: int
    n_vocab: int


class RemoteEngine:
    """The target's vocabulary and template, which are read here, and what the other process said of its models.

    It stands in for `Engine` where prompts are made and texts are counted; all else of it raises `RpcError`.
    forget: empties the cells over there.
    """

    def __init__(self, metadata: Metadata, facts: Facts, forget: Callable[[], None]) -> None:
        self.vocab: Vocabulary = reference().open_vocabulary(metadata)
        self.template = ChatTemplate(
            metadata.chat_template, bos=self.vocab.bos_text, eos=self.vocab.eos_text, name=metadata.path.name
        )
        self.target = RemoteContext(RemoteWeights(metadata, facts.build), facts.n_ctx, facts.n_vocab)
        self.most_draft_tokens = facts.most_draft_tokens
        self.no_draft_reason = facts.no_draft_reason
        self.draft = facts.has_draft
        self.sessions: dict[str, Session] = {}
        self.seats = None
        self.forget = forget

    def holding(self, tokens: Sequence[int]) -> RemoteEngine:
        """This one."""
        return self

    def read_by(self, name: str, ids: Sequence[int]) -> Sequence[int]:
        """What the model "target" reads for the target's `ids`."""
        return ids

    def close(self) -> None:
        """Free the vocabulary."""
        self.vocab.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(name)


def refuse(what: str) -> NoReturn:
    """Raise `RpcError` for what only a process has that computes itself."""
    raise RpcError(
        f"{what} is not here: the models are in a process of their own, for they are computed with RPC servers.",
        "Load them without rpc and draft_rpc for it.",
        command="Load them without servers for it.",
    )
