"""The options that every command with a model shares."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import click

from localspec.checks import LIBRARIES, VERIFY
from localspec.cli.completion import files, names_or_files
from localspec.cli.model_options import ModelOptions
from localspec.errors import InvalidRequest

Function = Callable[..., Any]


class WordOrCount(click.ParamType):  # type: ignore[type-arg]
    """A whole number from 0 up, or from `least` to `most`, or one of a few words."""

    def __init__(self, *words: str, least: int = 0, most: int | None = None) -> None:
        self.words = words
        self.least, self.most = least, most
        self.name = "|".join((*words, "N"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """The word or the number; fails with the list of what is allowed."""
        text = str(value).strip().lower()
        if text in self.words:
            return text
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
        if number < self.least or (self.most is not None and number > self.most):
            bounds = f"from {self.least} " + ("up" if self.most is None else f"to {self.most}")
            self.fail(f"{value!r} is not {', '.join(self.words)} or a whole number {bounds}.", param, ctx)
        return number

    def get_metavar(self, *_args: object, **_kwargs: object) -> str:
        """What the help page shows."""
        return f"[{self.name}]"


class Bounded(click.FloatRange):
    """A number within bounds: `nan` is one to Python, and beyond none of them."""

    noun = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; fails with what is allowed."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is no {self.noun}.", param, ctx)
        return number


class Seconds(Bounded):
    """A time that a clock can wait for: `inf` would be waited for in vain."""

    name = "seconds"
    noun = "time"
    LONGEST = 365.0 * 24 * 3600

    def __init__(self, *, above_zero: bool = False) -> None:
        super().__init__(min=0, min_open=above_zero, max=self.LONGEST)


DRAFT_TOKENS = WordOrCount("auto", "off")
GPU_LAYERS = WordOrCount("auto", "all")


@dataclass(frozen=True)
class _Option:
    """A decorator that adds an option; `replace` makes one with other settings."""

    names: tuple[str, ...]
    settings: dict[str, Any]

    def __call__(self, function: Function) -> Function:
        shown = self.settings.get("default") != ""  # which stands for none
        return click.option(*self.names, **{"show_default": shown, **self.settings})(function)

    @property
    def parameter(self) -> str:
        """The name under which click hands the value over."""
        explicit = [name for name in self.names if not name.startswith("-")]
        return explicit[0] if explicit else max(self.names, key=len).lstrip("-").replace("-", "_")

    @property
    def default(self) -> Any:
        """The parameter's value in commands that leave the option out."""
        empty = () if self.settings.get("multiple") else False if self.settings.get("is_flag") else None
        return self.settings.get("default", empty)


def _option(*names: str, **settings: Any) -> _Option:
    return _Option(names, settings)


library_option = _option(
    "--library",
    type=click.Choice(LIBRARIES),
    default="auto",
    help="What computes: llama.cpp, ik_llama.cpp (the extra fast), or whichever should be faster here.",
)
_PAIR = click.argument("pair", required=False, shell_complete=names_or_files)
_MODEL_OPTIONS = (
    _option(
        "-m",
        "--target",
        metavar="FILE|org/repo:quant",
        shell_complete=files,
        help="Target model, instead of PAIR: a GGUF file, or one of a Hugging Face repository.",
    ),
    _option(
        "-md",
        "--draft",
        metavar="FILE|org/repo:quant|mtp",
        shell_complete=files,
        help="Draft model for that target, named likewise; mtp: the target's own prediction layers.",
    ),
    _option("--no-draft", is_flag=True, help="Plain decoding, nothing is drafted."),
    _option("--no-cross-vocabulary", is_flag=True, help="Refuse a draft of another vocabulary."),
    _option("--draft-tokens", type=DRAFT_TOKENS, default="auto", help="Tokens drafted per round."),
    _option("-n", "--max-tokens", type=int, help="Longest answer, in tokens.  [default: until the end]"),
    _option("-c", "--ctx-size", type=int, default=4096, help="Context, in tokens."),
    _option("-s", "--seed", type=int, help="Seed of the random draws.  [default: another one each time]"),
    _option(
        "-t", "--threads", type=int, help="CPU threads.  [default: the physical cores that others leave]"
    ),
    _option("-ngl", "--gpu-layers", type=GPU_LAYERS, default="auto", help="Target layers on the GPU."),
    _option("-ngld", "--draft-gpu-layers", type=GPU_LAYERS, default="auto", help="Draft layers on the GPU."),
    _option(
        "--rpc",
        metavar="HOST:PORT,...",
        default="",
        help="RPC servers of llama.cpp that have the target's layers (docs/rpc.md).",
    ),
    _option("--draft-rpc", metavar="HOST:PORT,...", default="", help="Those that have the draft's layers."),
    _option("--temp", type=float, default=0.8, help="Temperature; 0 always takes the most likely token."),
    _option("--top-k", type=int, default=40, help="Keep the K most likely tokens; 0 is off."),
    _option("--top-p", type=float, default=0.95, help="Keep the likeliest tokens up to this mass; 1 is off."),
    _option("--min-p", type=float, default=0.05, help="Least probability, relative to the best; 0 is off."),
    _option(
        "--typical", type=float, default=1.0, help="Locally typical sampling, up to this mass; 1 is off."
    ),
    _option(
        "--top-nsigma",
        "top_n_sigma",
        type=float,
        default=0.0,
        help="Keep logits within N standard deviations of the largest; 0 is off.",
    ),
    _option("--repeat-penalty", type=float, default=1.0, help="Penalty on repeated tokens; 1 is off."),
    _option("--repeat-last-n", type=int, default=64, help="Tokens the penalties look back; -1 is all."),
    _option("--frequency-penalty", type=float, default=0.0, help="Penalty per occurrence; 0 is off."),
    _option("--presence-penalty", type=float, default=0.0, help="Penalty on tokens that occurred; 0 is off."),
    _option("--min-tokens", type=int, default=0, help="No end of the answer before this many tokens."),
    _option("--ignore-eos", is_flag=True, help="Go on to the longest answer, whatever the model says."),
    _option("--grammar", metavar="GBNF", help="The answer must match this grammar."),
    _option(
        "--grammar-file",
        metavar="FILE",
        shell_complete=files,
        help="The answer must match the grammar in this file.",
    ),
    _option("--json-schema", metavar="JSON", help="The answer must be JSON of this schema; {} is any JSON."),
    _option(
        "--json-schema-file",
        metavar="FILE",
        shell_complete=files,
        help="The answer must be JSON of the schema in this file.",
    ),
    _option(
        "--verify",
        type=click.Choice(VERIFY),
        default="auto",
        help="Accept rule. auto: coupled with a seed, whose text then is the same with any draft or none; "
        "else block, which keeps most of a draft. The distribution is the target's under each.",
    ),
    _option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text (repeatable)."),
    _option("-ctk", "--cache-type-k", default="f16", metavar="TYPE", help="K cache: f16, bf16, q8_0, ..."),
    _option(
        "-ctv",
        "--cache-type-v",
        default="f16",
        metavar="TYPE",
        help="V cache: f16, bf16, q8_0, ... bf16 makes attention rows independent of the batch width.",
    ),
    _option(
        "--strict",
        is_flag=True,
        help="Bit for bit the same answer with and without a draft: passes of one kind only, BF16 V cache. "
        "Costs speed; says how much.",
    ),
    _option("--no-mmap", is_flag=True, help="Read the weights into memory instead of mapping the files."),
    _option(
        "--no-prepare", is_flag=True, help="Use the draft as it is, not a copy prepared for this machine."
    ),
    library_option,
)

context_option = _option(
    "-c", "--ctx-size", type=click.IntRange(1, 2**31 - 1), default=4096, help="Context, in tokens."
)
json_option = _option(
    "--json", "as_json", is_flag=True, help="Print one JSON value; errors are text on stderr."
)
quiet_option = _option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors and notices.")
yes_option = _option("-y", "--yes", is_flag=True, help="Answer every question with yes.")
offline_option = _option("--offline", is_flag=True, help="Never use the network.")


_ABOUT_ANSWERS = frozenset(
    ("draft_tokens", "max_tokens", "seed", "temp", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n",
     "frequency_penalty", "presence_penalty", "typical", "top_n_sigma", "min_tokens", "ignore_eos", "stop",
     "verify", "grammar", "grammar_file", "json_schema", "json_schema_file")
)  # fmt: skip


_SERVERS = ("rpc", "draft_rpc")


def model_options(function: Function) -> Function:
    """Add PAIR and all model options; the function gets them as one `ModelOptions`, its first argument."""
    return model_options_with(servers=True)(function)


def loading_options(function: Function) -> Function:
    """Like `model_options`, without those that say how to answer: they keep their defaults."""
    return model_options_with(leave_out=_ABOUT_ANSWERS)(function)


def model_options_with(
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    leave_out: Collection[str] = (),
    *,
    servers: bool = False,
) -> Callable[[Function], Function]:
    """`model_options` with other settings for some parameters, or without them.

    servers: models may be on servers. What asks the engine itself, such as a measurement, cannot have it there.
    """
    leave_out = {*leave_out, *(() if servers else _SERVERS)}
    options = [
        replace(option, settings={**option.settings, **(changes or {}).get(option.parameter, {})})
        for option in _MODEL_OPTIONS
    ]
    defaults = {option.parameter: option.default for option in options if option.parameter in leave_out}

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            given = [field.name for field in fields(ModelOptions) if field.name not in defaults]
            chosen = ModelOptions(**defaults, **{name: values.pop(name) for name in given})
            return function(chosen, **values)

        decorated: Function = command
        for option in reversed(options):
            if option.parameter not in leave_out:
                decorated = option(decorated)
        return _PAIR(decorated)

    return decorate


_ANY = click.command("any")(model_options(lambda _options: None))
_OTHERWISE = {"n_ctx": "ctx_size", "temperature": "temp", "typical_p": "typical", "head": "draft"}
"""Arguments of calls that are parameters of another name here."""


def flags(command: click.Command = _ANY) -> dict[str, str]:
    """What the command's options are called by who types, by the arguments of calls that they become."""
    declared = {
        parameter.name: "/".join(parameter.opts)
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name
    }
    return declared | {name: declared[other] for name, other in _OTHERWISE.items() if other in declared}


def in_flags(sentence: str, command: click.Command = _ANY) -> str:
    """A sentence that begins with an argument of a call, with the flag in its place; any other as it is."""
    name, blank, rest = sentence.partition(" ")
    return f"{flags(command).get(name, name) if rest.startswith('is ') else name}{blank}{rest}"


def wrong_usage(error: InvalidRequest, command: click.Command) -> click.UsageError | None:
    """The error in the words of who typed a flag that cannot be used, or None where no flag is at fault."""
    if (message := in_flags(error.message, command)) == error.message:
        return None
    named = flags(command)
    remedy = re.sub(r"[a-z]+_\w+", lambda found: named.get(found[0], found[0]), error.command)
    return click.UsageError(f"{message} {remedy}".rstrip())
