"""The commands, which are imported by their names when they are called."""

from localspec.cli.app import COMMANDS

hiddenimports = [place.partition(":")[0] for place in COMMANDS.values()]
