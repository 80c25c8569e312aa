"""`localspec chat`: a conversation at the terminal, or one answer to one prompt."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from localspec.checks import WHEN_FULL
from localspec.cli import opening
from localspec.cli.chat.answer import write_out
from localspec.cli.chat.conversing import Manner, converse
from localspec.cli.chat.figures import cut_off, figures
from localspec.cli.chat.showing import Look, Showing
from localspec.cli.model_options import ModelOptions, names_model
from localspec.cli.options import json_option, model_options, offline_option, quiet_option, yes_option
from localspec.cli.terminal import checked_text, is_terminal, read_input, say, write_json
from localspec.errors import UnknownPair

if TYPE_CHECKING:
    from localspec.decoding.params import SamplingParams


ASK = "Give a question behind PAIR, with -p or on standard input."


@click.command(short_help="Chat with a model pair, or answer one prompt.")
@model_options
@click.argument("question", nargs=-1)
@click.option("-p", "--prompt", metavar="TEXT", help="Answer this and exit, like QUESTION.")
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option(
    "--when-full",
    type=click.Choice(WHEN_FULL),
    default="error",
    show_default=True,
    help="What a full context does to a conversation: nothing fits any more, or the model is no longer shown the "
    "oldest turns, which is said.",
)
@click.option(
    "--no-history",
    is_flag=True,
    help="Keep nothing of what is typed and answered for later conversations, and show none of it.",
)
@click.option(
    "--continue",
    "go_on",
    is_flag=True,
    help="Go on with the last conversation, with the model it was held with where none is named.",
)
@click.option(
    "--plain", is_flag=True, help="Print answers as the model writes them, not as rendered Markdown."
)
@click.option("--show-accepted", is_flag=True, help="Colour drafted tokens that the target accepted.")
@json_option
@quiet_option
@yes_option
@offline_option
def chat(
    options: ModelOptions,
    question: tuple[str, ...],
    prompt: str | None,
    system: str | None,
    when_full: str,
    no_history: bool,
    go_on: bool,
    plain: bool,
    show_accepted: bool,
    as_json: bool,
    quiet: bool,
    yes: bool,
    offline: bool,
) -> None:
    """Chat with PAIR: the name of a model pair (the default one if left out), the path of a GGUF
    file, or org/repo:quant, a model of a Hugging Face repository.

    With QUESTION, -p, or text on standard input, it prints one answer and exits: the answer goes to standard
    output, everything else to standard error. What a file or a pipe gives on standard input is added to the question,
    behind an empty line; < /dev/null adds nothing. Otherwise it is a conversation; /help lists its commands.
    The last conversations are kept, and --continue goes on with the newest.
    """
    options, question = _question_beside_files(options, question)
    if prompt is not None and question:
        raise click.UsageError("QUESTION and -p/--prompt both ask something: give one of them.")
    if question:
        prompt = " ".join(question)
    _refuse_a_question_as_pair(options)
    consent = opening.Consent(yes=yes, offline=offline, quiet=quiet)
    system = "" if system is None else checked_text("system prompt", system)
    options.check()
    look = Look(markdown=not plain, color=show_accepted)
    with _question_explained():
        if prompt is None and is_terminal(sys.stdin):
            _check_conversation(as_json)
            manner = Manner(system, when_full, look, keep=not no_history, go_on=go_on)
            converse(options, consent, manner)
        elif go_on:
            raise click.UsageError("--continue goes on with a conversation, in which questions are typed.")
        else:
            _answer_once(options, system, _whole_prompt(options, prompt), consent, look, as_json=as_json)


def _question_beside_files(
    options: ModelOptions, question: tuple[str, ...]
) -> tuple[ModelOptions, tuple[str, ...]]:
    """With -m nothing stands in the place of PAIR: the first word that is no model's name begins the question."""
    if options.target is None or options.pair is None or names_model(options.pair):
        return options, question
    return dataclasses.replace(options, pair=None), (options.pair, *question)


@contextlib.contextmanager
def _question_explained() -> Iterator[None]:
    """Where no pair has the name, a question may have been meant."""
    try:
        yield
    except UnknownPair as error:
        hint = "A question goes behind PAIR, or behind -p."
        raise UnknownPair(
            error.message, error.remedy, command=f"{error.command} {hint}", **error.data
        ) from error


def _refuse_a_question_as_pair(options: ModelOptions) -> None:
    """The first argument is PAIR; no pair has blanks in its name."""
    pair = options.pair or ""
    if len(pair.split()) > 1 and not pair.lower().endswith(".gguf") and not _exists(pair):
        raise click.UsageError(
            f"{pair!r} stands in the place of PAIR. A question goes behind PAIR, or behind -p."
        )


def _exists(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - that of pathlib raises for a long text


def _whole_prompt(options: ModelOptions, given: str | None) -> str:
    """The question with what is piped in behind it, or that alone. Raises `InvalidRequest`.

    Where there is none, a name that is no pair's was meant to be the question: raises `UnknownPair`.
    """
    prompt = "" if given is None else checked_text("prompt", given, ASK)
    piped = "" if is_terminal(sys.stdin) else read_input()
    if not piped.strip():
        if given is None:
            opening.check_name(options)
            checked_text("prompt", "", ASK)
        return prompt
    return checked_text("prompt", f"{prompt}\n\n{piped}" if prompt else piped)


def _check_conversation(as_json: bool) -> None:
    way = "give its prompt behind PAIR, with -p or on standard input"
    if as_json:
        raise click.UsageError(f"--json is for one answer: {way}.")
    if not is_terminal(sys.stdout):
        raise click.UsageError(f"A conversation needs a terminal, and one answer a prompt: {way}.")


def _answer_once(
    options: ModelOptions, system: str, question: str, consent: opening.Consent, look: Look, *, as_json: bool
) -> None:
    with opening.engine(options, consent) as llm:
        told = {"", llm.hint}
        conversation = llm.conversation(system, **options.conversation())
        if as_json:
            completion = write_out(lambda: conversation.ask(question), _discard)
        else:
            showing = Showing(llm, look, watch_repetition=False)
            completion = showing.run(lambda: conversation.ask(question), patient=False)
        if as_json and completion.finish_reason != "cancelled":
            fields = {
                "text": completion.text,
                "ids": list(completion.ids),
                "finish_reason": completion.finish_reason,
                "statistics": completion.stats.to_dict(),
                "settings": llm.settings,
                "sampling": _json_ready(options.sampling()),
                "seed": completion.seed,
                "drafting": completion.drafting,
                "hint": completion.hint,
                "notice": completion.notice,
            }
            write_json(fields)
    if completion.notice:
        say(completion.notice)
    if not consent.quiet:
        say(figures(completion, options.max_tokens), dim=True)
        if completion.hint not in told:
            say(completion.hint, dim=True)
    elif is_terminal(sys.stdout) and (cut := cut_off(completion, options.max_tokens)):
        say(cut, dim=True)
    if completion.finish_reason == "cancelled":
        raise KeyboardInterrupt


def _json_ready(params: SamplingParams) -> dict[str, object]:
    fields = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    return {**fields, "stop": list(params.stop), "logit_bias": dict(params.logit_bias)}


def _discard(_text: str) -> None:
    """The whole answer comes in the JSON object."""
