"""The server's public names, which are imported when they are first used."""

from PyInstaller.utils.hooks import collect_submodules

hiddenimports = collect_submodules("localspec.server")
