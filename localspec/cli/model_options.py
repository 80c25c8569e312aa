"""ModelOptions: what to run and how, as given on the command line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localspec.checks import checked_path, user_path

if TYPE_CHECKING:
    from localspec.decoding.params import SamplingParams
    from localspec.pairs.reference import Reference


OWN_HEAD = "mtp"
"""What to give as the draft for the target's own prediction layers. A file of that name is ./mtp."""


@dataclass(frozen=True)
class ModelOptions:
    """What to run and how, as given on the command line."""

    pair: str | None
    target: str | None
    draft: str | None
    no_draft: bool
    no_cross_vocabulary: bool
    draft_tokens: str | int
    max_tokens: int | None
    ctx_size: int
    seed: int | None
    threads: int | None
    gpu_layers: str | int
    draft_gpu_layers: str | int
    rpc: str
    draft_rpc: str
    temp: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    typical: float
    top_n_sigma: float
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    verify: str
    grammar: str | None
    grammar_file: str | None
    json_schema: str | None
    json_schema_file: str | None
    strict: bool
    cache_type_k: str
    cache_type_v: str
    no_mmap: bool
    no_prepare: bool
    library: str

    def pair_name(self) -> str | None:
        """The pair asked for by name, "" for the default one, or None when files are given.

        Raises `click.UsageError` for options that exclude each other.
        """
        if self.pair is not None and self.target is not None:
            raise click.UsageError("PAIR and -m/--target both say what to run: give one of them.")
        if self.pair is not None and not self.pair.strip():
            raise click.UsageError(
                "PAIR is empty: leave it out for the default pair, or see `localspec list`."
            )
        name = self.pair or ""
        if self.target is not None or is_path(name):
            return None
        if self.draft is not None and not self.drafts_itself:
            raise click.UsageError(
                "-md/--draft goes with -m/--target, or with a GGUF file or org/repo:quant as PAIR."
            )
        return name

    def named(self) -> dict[str, str]:
        """What names the model on the command line: pair, target, draft, as far as given; paths from the root."""
        given = {"pair": self.pair, "target": self.target, "draft": self.draft}
        return {name: _from_root(text) for name, text in given.items() if text}

    def title(self) -> str:
        """The same in words."""
        from localspec.pairs.catalogue import DEFAULT_PAIR

        return " + ".join(self.named().values()) or DEFAULT_PAIR

    @property
    def drafts_itself(self) -> bool:
        """Whether the target's own prediction layers shall draft."""
        return self.draft is not None and self.draft.lower() == OWN_HEAD

    @property
    def wants_draft(self) -> bool:
        """Whether the draft that belongs to a pair is loaded."""
        return not (self.no_draft or self.drafts_itself)

    def files(self) -> tuple[Path | Reference, Path | Reference | None]:
        """Target and draft, where `pair_name` is None: files, or models of a hub's repositories.

        Raises `click.UsageError` for an empty name.
        """
        target = model_of(self.target if self.target is not None else self.pair or "")
        return target, None if self.draft is None or self.drafts_itself else model_of(self.draft)

    def check(self) -> None:
        """Raise `click.UsageError` or `InvalidRequest` for what can be refused before anything is loaded."""
        from localspec.engine.options import engine_options

        if self.pair_name() is None:
            self.files()
        if self.max_tokens is not None and self.max_tokens < 1:
            raise click.UsageError(f"-n/--max-tokens is {self.max_tokens}. It must be at least 1.")
        if self.no_draft and str(self.draft_tokens) not in ("auto", "off", "0"):
            raise click.UsageError(
                f"--no-draft drafts nothing, and --draft-tokens {self.draft_tokens} asks for drafts: give one of them."
            )
        engine_options({name: value for name, value in self.engine().items() if name != "draft_tokens"})
        self.sampling()
        given = {name: text for name, text in self.answering().items() if name in ("grammar", "json_schema")}
        if given:
            from localspec.grammar.constraint import check_constraint

            check_constraint(**given)

    def engine(self) -> dict[str, Any]:
        """Keyword arguments of `LLM.from_pair` and `LLM.from_files`."""
        return {
            "n_ctx": self.ctx_size,
            "threads": self.threads,
            "gpu_layers": self.gpu_layers,
            "draft_gpu_layers": self.draft_gpu_layers,
            "rpc": self.rpc,
            "draft_rpc": self.draft_rpc,
            "draft_tokens": self.draft_tokens,
            "use_mmap": not self.no_mmap,
            "no_draft": self.no_draft,
            "no_cross_vocabulary": self.no_cross_vocabulary,
            "prepare_draft": not self.no_prepare,
            "cache_type_k": self.cache_type_k,
            "cache_type_v": self.cache_type_v,
            "strict": self.strict,
            "library": self.library,
            "head": "on" if self.drafts_itself and not self.no_draft else "auto",
        }

    def answering(self) -> dict[str, Any]:
        """Further keyword arguments of `LLM.chat`. Raises `click.UsageError` for more than one grammar."""
        given = [
            name
            for name in ("grammar", "grammar_file", "json_schema", "json_schema_file")
            if getattr(self, name) is not None
        ]
        if len(given) > 1:
            names = " and ".join("--" + name.replace("_", "-") for name in given)
            raise click.UsageError(f"{names} both say what the answer must look like: give one of them.")
        arguments: dict[str, Any] = {"verify": self.verify}
        if given:
            text = getattr(self, given[0])
            kind = given[0].removesuffix("_file")
            arguments[kind] = _text_of(given[0], text) if given[0].endswith("_file") else text
        return arguments

    def conversation(self) -> dict[str, Any]:
        """Keyword arguments of `LLM.conversation`. Raises what `sampling` and `answering` raise.

        With them a conversation that is loaded follows this command, and nothing that was given when it was saved.
        """
        own = {"params": self.sampling(), "draft_tokens": self.draft_tokens, "grammar": None}
        return {**own, **self.answering()}

    def sampling(self) -> SamplingParams:
        """How tokens are drawn. Raises `InvalidRequest` naming the value out of range."""
        from localspec.decoding.params import SamplingParams

        return SamplingParams(
            temperature=self.temp,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical,
            top_n_sigma=self.top_n_sigma,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            repeat_penalty=self.repeat_penalty,
            repeat_last_n=self.repeat_last_n,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            seed=self.seed,
            max_tokens=self.max_tokens,
            stop=self.stop,
        )


def _text_of(option: str, path: str) -> str:
    try:
        return checked_path(option, path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise click.UsageError(f"--{option.replace('_', '-')}: {path!r} cannot be read: {reason}.") from None


def _from_root(name: str) -> str:
    return str(user_path(name).absolute()) if is_path(name) and user_path(name).is_file() else name


def is_path(name: str) -> bool:
    return name.lower().endswith(".gguf") or "/" in name or "\\" in name or is_other_file(name)


def is_other_file(name: str) -> bool:
    """Whether it is what a file on this disk is called, and no pair: a pair goes before a file of its name."""
    if not os.path.isfile(name):  # noqa: PTH113 - that of pathlib raises for a long text
        return False
    from localspec.hub.named_models import pair_named

    return pair_named(name) is None


def names_model(word: str) -> bool:
    """Whether a word is what a known pair, a GGUF file or a model of a hub is called."""
    from localspec.errors import UnknownPair
    from localspec.pairs.catalogue import pair
    from localspec.pairs.reference import parse_reference

    if word.lower().endswith(".gguf") or is_other_file(word) or (":" in word and parse_reference(word)):
        return True
    try:
        pair(word)
    except UnknownPair:
        return False
    return True


def model_of(text: str) -> Path | Reference:
    """The file of that path, or the model that `org/repo:quant` names. Raises `click.UsageError` if empty."""
    from localspec.pairs.reference import parse_reference

    if not text.strip():
        raise click.UsageError("The name of a model file is empty.")
    reference, path = parse_reference(text), checked_path("target", text)
    if reference is None and not path.exists() and not is_path(text) and names_model(text):
        raise click.UsageError(
            f"{text} is a pair, and -m and -md take files or org/repo:quant: "
            f"`localspec show {text}` says where its files lie."
        )
    return path if reference is None or path.exists() else reference
