"""The command line: parse, call, print; it has no rules of its own and is light to import."""

from __future__ import annotations

from localspec.cli.app import main

__all__ = ["main"]
