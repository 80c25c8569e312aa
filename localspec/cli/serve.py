"""`localspec serve`: an OpenAI-compatible server on this machine."""

from __future__ import annotations

import importlib.util
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localspec.checks import MOST_PARALLEL
from localspec.cli import opening
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import (
    Seconds,
    WordOrCount,
    model_options,
    offline_option,
    quiet_option,
    yes_option,
)
from localspec.cli.terminal import say

if TYPE_CHECKING:
    from localspec.llm import LLM
    from localspec.server.settings import Settings

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Place:
    """Where to listen."""

    host: str
    port: int
    uds: str | None

    @property
    def public(self) -> bool:
        """Whether other machines may reach it."""
        return self.uds is None and self.host not in LOOPBACK


@click.command(name="serve", short_help="Answer OpenAI's HTTP API on this machine.")
@model_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any free one."
)
@click.option("--uds", metavar="PATH", help="Listen on this Unix socket instead.")
@click.option(
    "--api-key",
    metavar="KEY",
    envvar="LOCALSPEC_API_KEY",
    show_envvar=True,
    help="Key that requests must bring.",
)
@click.option(
    "--cors", multiple=True, metavar="ORIGIN", help="Web pages that may ask, * for all (repeatable)."
)
@click.option(
    "--parallel", type=WordOrCount("auto", least=1, most=MOST_PARALLEL), default="auto", show_default=True,
    help="Requests that are answered at a time, 1 to 64; auto: as many as memory has room for, up to 4.",
)  # fmt: skip
@click.option(
    "--queue", type=click.IntRange(min=0), default=8, show_default=True,
    help="Requests that may wait for those being answered; more are refused with 429.",
)  # fmt: skip
@click.option(
    "--timeout", type=Seconds(above_zero=True), metavar="SECONDS",
    help="Longest time for a request, waiting included.  [default: no limit]",
)  # fmt: skip
@click.option(
    "--grace",
    type=Seconds(),
    metavar="SECONDS",
    default=5.0,
    show_default=True,
    help="How long answers may go on after Ctrl-C or SIGTERM; a second signal ends them at once.",
)
@click.option(
    "--unload-after", type=Seconds(above_zero=True), metavar="SECONDS",
    help="Free the model's memory when nothing was asked for so long; the next request loads it again."
    "  [default: never]",
)  # fmt: skip
@click.option(
    "--alias", metavar="NAME", help="The model's name for clients.  [default: PAIR or the file's name]"
)
@click.option(
    "--any-model", is_flag=True,
    help="Answer requests for a model of any name, for clients that cannot be told another.",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Log loads, requests (never their texts) and refusals.")
@quiet_option
@yes_option
@offline_option
def serve(
    options: ModelOptions,
    host: str,
    port: int,
    uds: str | None,
    api_key: str | None,
    cors: tuple[str, ...],
    parallel: str | int,
    queue: int,
    timeout: float | None,
    grace: float,
    unload_after: float | None,
    alias: str | None,
    any_model: bool,
    verbose: bool,
    quiet: bool,
    yes: bool,
    offline: bool,
) -> None:
    """Answer OpenAI's HTTP API with PAIR: chat and text completions, for any client that speaks it.

    The options about answers hold where a request says nothing. Ctrl-C or SIGTERM ends the server: what is being
    answered may finish within --grace seconds. Needs fastapi and uvicorn, the extra `server`.
    """
    options.check()
    if api_key is not None and not api_key.strip():
        raise click.UsageError(
            "The API key is empty: give one, or leave --api-key and LOCALSPEC_API_KEY out."
        )
    if alias is not None and not alias.strip():
        raise click.UsageError("--alias is empty.")
    _check_origins(cors)
    _check_installed()
    consent = opening.Consent(yes=yes, offline=offline, quiet=quiet)
    if verbose:
        _log()
    from localspec.server.settings import Settings

    names = opening.names(options)
    settings = Settings(
        name=alias or names[0],
        names=names,
        any_model=any_model,
        any_model_option="--any-model",
        api_key=None if api_key is None else api_key.strip(),
        cors=cors,
        queue=queue,
        timeout=timeout,
        grace=grace,
        params=options.sampling(),
        answering=options.answering(),
    )
    further = {"unload_after": unload_after, "parallel": parallel}
    _serve(options, Place(host, port, uds), settings, consent, further)


def _serve(
    options: ModelOptions,
    place: Place,
    settings: Settings,
    consent: opening.Consent,
    further: dict[str, Any],
) -> None:
    from localspec.server import serve as server

    bound = (
        server.tcp_socket(place.host, place.port)
        if place.uds is None
        else server.unix_socket(Path(place.uds))
    )
    with bound as listening:
        opening.fetch(options, consent)
        where = place.uds or "http://{}:{}".format(
            f"[{place.host}]" if ":" in place.host else place.host, listening.getsockname()[1]
        )
        if place.public and settings.api_key is None:
            say(f"warning: any machine that reaches {place.host} may use this server; see --api-key.")

        def load() -> LLM:
            llm = opening.open_quietly(options, consent, **further)
            if not consent.quiet:
                if llm.parallel > 1:
                    say(f"answers {llm.parallel} requests at a time", dim=True)
                say(f"{settings.name} is ready on {where}")
            return llm

        if not consent.quiet:
            say(f"listening on {where}, loading the model", dim=True)
        server.serve(load, settings, listening, _say_nothing if consent.quiet else say)


def _say_nothing(_sentence: str) -> None:
    pass


def _log() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("localspec")
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def _check_origins(origins: tuple[str, ...]) -> None:
    for origin in origins:
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
            raise click.UsageError(f"--cors {origin}: give an origin such as http://localhost:3000, or *.")


def _check_installed() -> None:
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        from localspec.errors import MissingPackage
        from localspec.system.packages import install

        raise MissingPackage(
            f"The server needs {' and '.join(missing)}.",
            install(*missing),
            package=missing[0],
        )
