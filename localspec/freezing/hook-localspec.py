"""What a program with localspec needs beside the modules that its imports tell."""

from importlib import metadata
from importlib.util import find_spec
from typing import Any

from localspec.pairs.catalogue import built_in_folder

APART = ("cli", "desktop", "doctor", "freezing", "measure", "server", "__main__")
"""Those of the package that come where a program imports them, with all that they need."""
LIBRARIES = ("llama_cpp", "ik_llama_cpp")
PACKAGES = ("ik-llama-cpp-python", "llama-cpp-python", "llguidance", "numpy", "prompt_toolkit")
"""Whose versions are asked for while a program runs."""


def is_part(module: str) -> bool:
    """Whether a module of localspec comes with every program."""
    return not module.removeprefix("localspec.").startswith(APART)


def hook(api: Any) -> None:
    """Called by PyInstaller where a program imports localspec."""
    from PyInstaller.utils import hooks

    # Some are imported by a name in a text: public names, compute libraries, what child processes do.
    api.add_imports(*hooks.collect_submodules("localspec", filter=is_part))
    pairs = [file for file in built_in_folder().iterdir() if file.is_file()]
    api.add_datas([(str(file), "localspec_models") for file in pairs])
    for library in filter(find_spec, LIBRARIES):
        api.add_binaries(hooks.collect_dynamic_libs(library))
        api.add_datas(hooks.collect_data_files(library, subdir="lib"))
        # Both bring libraries of the same names: none of them may be found but beside those that need it.
        api.add_bindepend_symlink_suppression_pattern(f"**/{library}/lib/*")
    for package in PACKAGES:
        try:
            api.add_datas(hooks.copy_metadata(package))
        except metadata.PackageNotFoundError:
            continue
