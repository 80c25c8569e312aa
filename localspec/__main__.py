"""The command `localspec`, which is the same as `python -m localspec`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported ends it like any later one."""
    try:
        from localspec.cli import main as command

        command(prog_name="localspec")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        # Where Ctrl-C came in code that a string holds (a dataclass being made), Python remembers it as unhandled and
        # would end by the signal. Running a string forgets that.
        exec("")


if __name__ == "__main__":
    main()
