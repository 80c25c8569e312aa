"""A plugin of the `llm` command-line tool: every known pair as a model, `localspec/NAME`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager

import click
import llm
from llm.parts import StreamEvent

import localspec
from localspec.errors import HubError, LocalspecError, NotDownloaded
from localspec.plugins.held import HeldModels, is_here
from localspec.plugins.llm_options import AnswerSettings
from localspec.plugins.llm_turn import Turn
from localspec.store.known import known_pairs
from localspec.store.store import Store

PREFIX = "localspec/"
HELD = HeldModels()


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Every pair of the catalogue, the user's own, and the models pulled from a hub. Nothing is loaded."""
    try:
        names = [pair.name for pair in known_pairs(Store())]
    except LocalspecError as error:  # the tool's other models must not suffer
        click.echo(f"localspec has no models: {_told(error)}", err=True)
        return
    for name in names:
        register(LocalspecModel(name), AsyncLocalspecModel(name))


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    """`pull`: where the tool has an environment of its own, localspec's command need not be on the path."""

    @cli.group(name="localspec")
    def group() -> None:
        """Models that localspec runs on this machine"""

    @group.command()
    @click.argument("name")
    def pull(name: str) -> None:
        """Download what is missing of a pair, or of a hub's model (org/repo:quant)"""
        try:
            localspec.pull(name.removeprefix(PREFIX), on_progress=_Shown())
        except LocalspecError as error:
            raise click.ClickException(_told(error)) from error


class _Shown:
    """Says on standard error how far a pull is, at each tenth of a file's stage."""

    def __init__(self) -> None:
        self._last: tuple[str, str, int] | None = None

    def __call__(self, progress: localspec.Progress) -> None:
        now = (progress.file, str(progress.stage), int(10 * progress.fraction))
        if now != self._last:
            click.echo(progress.sentence, err=True)
        self._last = now


class _Shared:
    """What the model and its twin for asyncio have in common. name: of the pair."""

    can_stream = True
    supports_schema = True
    supports_tools = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.model_id = f"{PREFIX}{name}"

    def __str__(self) -> str:
        return f"localspec: {self.model_id}{'' if is_here(self.name) else ' (not downloaded)'}"

    def turn(self, prompt: llm.Prompt) -> tuple[localspec.LLM, Turn]:
        """The loaded model, and what the prompt asks of it. Raises `llm.ModelError`."""
        with model_errors():
            settings = prompt.options
            assert isinstance(settings, AnswerSettings)
            model = HELD.get(self.name, settings.loading())
            return model, Turn(model, prompt)


class LocalspecModel(_Shared, llm.Model):
    """A pair. Its answers run one at a time; dropping a response ends its answer."""

    class Options(AnswerSettings):
        """Those of every pair."""

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None,
    ) -> Iterator[StreamEvent]:
        """The answer as it comes. What the conversation has in common with earlier prompts is not read again."""
        model, turn = self.turn(prompt)
        with model_errors():
            chunks = model.stream(turn.ids, **turn.options)
            try:
                for chunk in chunks:
                    yield from turn.events(chunk)
            finally:
                chunks.close()
        turn.conclude(response)


class AsyncLocalspecModel(_Shared, llm.AsyncModel):
    """The same for asyncio, on the same loaded pair. A load that nobody waits for any more is kept for the next."""

    class Options(AnswerSettings):
        """Those of every pair."""

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None,
    ) -> AsyncGenerator[StreamEvent, None]:
        """As that of `LocalspecModel`."""
        model, turn = await asyncio.to_thread(self.turn, prompt)
        with model_errors():
            chunks = localspec.AsyncLLM(model).stream(turn.ids, **turn.options)
            try:
                async for chunk in chunks:
                    for event in turn.events(chunk):
                        yield event
            finally:
                await chunks.aclose()
        turn.conclude(response)


@contextmanager
def model_errors() -> Iterator[None]:
    """Errors of localspec become `llm.ModelError`, which the tool prints."""
    try:
        yield
    except LocalspecError as error:
        raise llm.ModelError(_told(error)) from error


def _told(error: LocalspecError) -> str:
    """One sentence and the remedy, in words that fit the tool: its options are named as the API's are."""
    if isinstance(error, NotDownloaded):
        pull_command = f"Run `llm localspec pull {error.data.get('name', 'NAME')}`."
        return f"{error.message} {pull_command}"
    return f"{error.message} {error.command}".strip() if isinstance(error, HubError) else str(error)
