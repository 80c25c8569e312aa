"""The arguments of scripts that measure a pair."""

from __future__ import annotations

import argparse
from pathlib import Path


def pair_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser for TARGET, DRAFT and the context's size."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path, nargs="?")
    parser.add_argument("-c", "--ctx-size", type=int, default=4096)
    return parser
