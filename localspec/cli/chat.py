"""`localspec chat`: a conversation at the terminal, or one answer to one prompt."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

import click

from localspec.cli import opening
from localspec.cli.answer import figures, write_out
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import json_option, model_options, offline_option, quiet_option, yes_option
from localspec.cli.terminal import checked_text, is_terminal, read_input, say, write_answer

if TYPE_CHECKING:
    from localspec.decoding.params import SamplingParams


@click.command(short_help="Chat with a model pair, or answer one prompt.")
@model_options
@click.option("-p", "--prompt", metavar="TEXT", help="Answer this and exit; standard input is not read.")
@click.option("--system", metavar="TEXT", help="System prompt.")
@json_option
@quiet_option
@yes_option
@offline_option
def chat(
    options: ModelOptions,
    prompt: str | None,
    system: str | None,
    as_json: bool,
    quiet: bool,
    yes: bool,
    offline: bool,
) -> None:
    """Chat with PAIR: the name of a model pair (the default one if left out), the path of a GGUF
    file, or org/repo:quant, a model of a Hugging Face repository.

    With -p, or with text on standard input, it prints one answer and exits: the answer goes to standard
    output, everything else to standard error. Otherwise it is a conversation; /help lists its commands.
    """
    consent = opening.Consent(yes=yes, offline=offline, quiet=quiet)
    system = "" if system is None else checked_text("system prompt", system)
    options.check()
    if prompt is None and is_terminal(sys.stdin):
        _converse(options, system, consent, as_json)
        return
    question = checked_text("prompt", read_input() if prompt is None else prompt)
    _answer_once(options, system, question, consent, as_json)


def _converse(options: ModelOptions, system: str, consent: opening.Consent, as_json: bool) -> None:
    if as_json or not is_terminal(sys.stdout):
        raise click.UsageError("A conversation needs a terminal: give one prompt with -p or standard input.")
    from localspec.cli.interactive import Chat
    from localspec.cli.line_editor import prompt_reader

    with opening.engine(options, consent) as llm:
        if not consent.quiet:
            say("/help lists the commands, Ctrl-D leaves", dim=True)
        Chat(llm, options, system, quiet=consent.quiet).run(prompt_reader())


def _answer_once(
    options: ModelOptions, system: str, question: str, consent: opening.Consent, as_json: bool
) -> None:
    with opening.engine(options, consent) as llm:
        write = _discard if as_json else write_answer
        conversation = llm.conversation(system, **options.conversation())
        completion = write_out(lambda: conversation.ask(question), write)
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
                "notice": completion.notice,
            }
            click.echo(json.dumps(fields))
        elif not completion.text.endswith("\n"):
            write("\n")
    if completion.notice:
        say(completion.notice)
    if not consent.quiet:
        say(figures(completion), dim=True)
    if completion.finish_reason == "cancelled":
        raise KeyboardInterrupt


def _json_ready(params: SamplingParams) -> dict[str, object]:
    fields = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    return {**fields, "stop": list(params.stop), "logit_bias": dict(params.logit_bias)}


def _discard(_text: str) -> None:
    """The whole answer comes in the JSON object."""
