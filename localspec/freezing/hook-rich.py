"""Tables and lines for a terminal, with the widths of characters that rich imports by name, and no notebook."""

from PyInstaller.utils.hooks import collect_submodules

hiddenimports = collect_submodules("rich._unicode_data")
excludedimports = ["IPython", "ipywidgets"]
