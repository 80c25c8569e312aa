"""What to do about a package that is missing or wrong, in a sentence: into a frozen program nobody can install one."""

from __future__ import annotations

from localspec.system.frozen import is_frozen


def install(*requirements: str) -> str:
    """The remedy for packages that are missing. requirements: what pip is asked for, quoted for a shell."""
    what, names = "it" if len(requirements) == 1 else "them", " ".join(requirements)
    if is_frozen():
        return f"This program was built without {what}: {_to_its_makers(names)}"
    return f"Install {what}: pip install {names}."


def replace(how: str, requirement: str, *options: str) -> str:
    """The remedy for a package that is there and not as it should be. how: what to do, in words."""
    return mend(f"{how}: pip install {' '.join((*options, requirement))}.", requirement)


def mend(remedy: str, requirement: str) -> str:
    """`remedy`; in a frozen program, which brings that package with it, who can do something."""
    return f"This program was built so: {_to_its_makers(requirement)}" if is_frozen() else remedy


def remove(package: str) -> str:
    """How to be rid of a package that does no harm, or "" where nobody can."""
    return "" if is_frozen() else f"To be rid of it: pip uninstall {package}."


def _to_its_makers(requirement: str) -> str:
    return f"tell its makers to install {requirement} where they build it, and to build it again."
