"""Plant a fault in the real source of a function, for as long as a block runs."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def planted(module_name: str, qualified_name: str, right: str, wrong: str) -> Iterator[None]:
    """Replace `right` by `wrong` in the function's source, which must hold it exactly once."""
    module = import_module(module_name)
    *owners, name = qualified_name.split(".")
    owner = module
    for part in owners:
        owner = getattr(owner, part)
    original = owner.__dict__[name]
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(right) == 1, f"{qualified_name} no longer holds {right!r} once"
    namespace: dict[str, object] = {}
    exec(
        compile(source.replace(right, wrong), f"<{qualified_name}, mutated>", "exec"), vars(module), namespace
    )
    mutated = namespace[name]
    # Not getattr: a package may make attributes up when asked, and warn.
    users = [m for m in list(sys.modules.values()) if m and vars(m).get(name) is original]
    setattr(owner, name, mutated)
    for user in users:  # modules that imported the function by name
        setattr(user, name, mutated)
    try:
        yield
    finally:
        setattr(owner, name, original)
        for user in users:
            setattr(user, name, original)
