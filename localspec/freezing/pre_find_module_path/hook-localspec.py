"""Where localspec lies: an editable installation may tell Python alone, by code that PyInstaller does not ask."""

from pathlib import Path
from typing import Any

import localspec


def pre_find_module_path(api: Any) -> None:
    """Called by PyInstaller before it looks for the package."""
    api.search_dirs = [str(Path(localspec.__file__).parents[1])]
