"""A text in the user's own editor: $VISUAL, $EDITOR, or what there is."""

from __future__ import annotations

import click

from localspec.cli.terminal import say


def edited(text: str) -> str | None:
    """The text as it was saved in the editor; None where nothing was saved, or no editor could be started."""
    try:
        changed = click.edit(text, extension=".md")
    except click.ClickException as error:
        say(f"{error.format_message().rstrip('.')}. VISUAL or EDITOR in the environment names the editor.")
        return None
    return None if changed is None else changed.removesuffix("\n")
