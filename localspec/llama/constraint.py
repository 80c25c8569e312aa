"""Grammar or JSON schema -> which tokens may come next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.decoding.sampler import Constraint
from localspec.llama.model import Model


def token_constraint(
    model: Model, *, grammar: str | None = None, json_schema: Mapping[str, Any] | str | bool | None = None
) -> Constraint | None:
    """What a GBNF grammar or a JSON schema allows, in the ids of `model`; None without either.

    Raises `InvalidRequest` for both at once and for what is no grammar or schema.
    """
    if grammar is None and json_schema is None:
        return None
    raise NotImplementedError
