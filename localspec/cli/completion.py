"""What Tab completes besides commands and options: names of pairs and of models pulled from a hub, and paths.

A shell asks at every Tab: no network is used, and nothing but the files that name pairs is read.
"""

from __future__ import annotations

from contextlib import suppress

import click
from click.shell_completion import CompletionItem


def pair_names(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Every name that begins so, with what it is."""
    from localspec.pairs import catalogue
    from localspec.pairs.pins import Pins
    from localspec.system.home import default_home

    known = []
    with suppress(Exception):  # a shell has no use for errors
        known += catalogue.pairs()
        known += Pins(default_home()).all()
    return [
        CompletionItem(pair.name, help=pair.summary) for pair in known if pair.name.startswith(incomplete)
    ]


def names_or_files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names, and paths where no name begins so."""
    return pair_names(ctx, parameter, incomplete) or files(ctx, parameter, incomplete)


def files(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Paths, which the shell completes itself."""
    return [CompletionItem(incomplete, type="file")]


def folders(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Paths of folders, which the shell completes itself."""
    return [CompletionItem(incomplete, type="dir")]
