"""`python -m localspec` is the same as `localspec`."""

from __future__ import annotations

from localspec.cli import main

if __name__ == "__main__":
    main(prog_name="localspec")
