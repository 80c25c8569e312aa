"""What a program with localspec needs beside the modules that its imports tell."""

from importlib import metadata
from importlib.util import find_spec

from PyInstaller.utils.hooks import (
    collect_data_files,
    collect_dynamic_libs,
    collect_submodules,
    copy_metadata,
)

from localspec.pairs import catalogue

APART = ("__main__", "cli", "desktop", "doctor", "freezing", "measure.plot", "plugins", "server")
"""Those of the package that come where a program imports them, with all that they need."""
LIBRARIES = tuple(filter(find_spec, ("llama_cpp", "ik_llama_cpp")))
PACKAGES = ("ik-llama-cpp-python", "llama-cpp-python", "llguidance", "numpy", "prompt_toolkit")
"""Whose versions are asked for while a program runs."""


def is_part(module: str) -> bool:
    """Whether a module of localspec comes with every program."""
    return not f"{module}.".startswith(tuple(f"localspec.{name}." for name in APART))


def versions() -> list[tuple[str, str]]:
    """Where the versions of those packages are written that are installed, and the folders for it."""
    found = []
    for package in PACKAGES:
        try:
            found += copy_metadata(package)
        except metadata.PackageNotFoundError:
            continue
    return found


# Some are imported by a name in a text: public names, compute libraries, what child processes do.
hiddenimports = collect_submodules("localspec", filter=is_part)
excludedimports = ["IPython"]  # no frozen program is a notebook
datas = versions() + [
    (str(file), "localspec_models") for file in catalogue._folder().iterdir() if file.is_file()
]
binaries = []
for library in LIBRARIES:
    binaries += collect_dynamic_libs(library)
    datas += collect_data_files(library, subdir="lib")
# Both have files of the same names: none may be found but beside those that need it.
bindepend_symlink_suppression = [f"**/{library}/lib/*" for library in LIBRARIES]
