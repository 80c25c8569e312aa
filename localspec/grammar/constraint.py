"""Grammar or JSON schema -> which tokens may come next."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from localspec.compute.vocabulary import Vocabulary
from localspec.decoding.sampler import Constraint
from localspec.errors import InvalidRequest
from localspec.grammar.matching import GrammarConstraint, first_sentence
from localspec.grammar.notation import (
    fault_of,
    limits,
    notations_of_grammar,
    notations_of_schema,
    unusable,
)
from localspec.grammar.schema_faults import first_fault
from localspec.grammar.token_table import TokenTable, table_of
from localspec.system.deep_stack import with_deep_stack

if TYPE_CHECKING:
    from llguidance import LLMatcher

_building = threading.Lock()


def token_constraint(
    vocabulary: Vocabulary,
    *,
    grammar: str | None = None,
    json_schema: Mapping[str, Any] | str | bool | None = None,
) -> Constraint | None:
    """What a GBNF grammar or a JSON schema allows, in the ids of `vocabulary`; None without either.

    Raises `InvalidRequest` for both at once and for what is no grammar or schema.
    """
    if grammar is None and json_schema is None:
        return None
    notations, field = _notations(grammar, json_schema)
    if not vocabulary.eog_tokens:
        raise InvalidRequest(
            f"{vocabulary.name} has no token that ends an answer.", f"Leave {field} out.", name=field
        )
    with _building:  # two requests at once: one of them reads the vocabulary
        table = table_of(vocabulary)
        _ = table.tokenizer
    try:
        return constraint_on(table, notations, field)
    except InvalidRequest as error:
        raise _named(error, json_schema) from None


def check_constraint(
    *, grammar: str | None = None, json_schema: Mapping[str, Any] | str | bool | None = None
) -> None:
    """Raise those `InvalidRequest`s of `token_constraint` that need no model, so before one is loaded."""
    if grammar is None and json_schema is None:
        return
    notations, field = _notations(grammar, json_schema)
    reasons = [fault_of(notation) for notation in notations]
    if all(reasons):
        raise _named(unusable(field, reasons[-1]), json_schema)


def _named(error: InvalidRequest, schema: object) -> InvalidRequest:
    """`error`, with the place in the schema at fault if one is known."""
    fault = first_fault(schema)
    return unusable("json_schema", f"{fault.path}: {fault.reason}") if fault and fault.path else error


def _notations(grammar: object, json_schema: object) -> tuple[list[str], str]:
    """The one of the two that is given, in the library's notation, and the option's name."""
    if grammar is not None and json_schema is not None:
        raise InvalidRequest(
            "grammar and json_schema both say what the answer must look like.",
            "Give one of them.",
            name="grammar",
        )
    if grammar is None:
        return notations_of_schema(json_schema), "json_schema"
    return notations_of_grammar(grammar), "grammar"


def constraint_on(table: TokenTable, notations: Sequence[str], field: str) -> GrammarConstraint:
    """The constraint of a grammar in the library's own notation; the first of `notations` that it can read.

    Raises `InvalidRequest` naming `field`, with the library's reason, when it can read none.
    """
    for notation in notations:
        matcher = with_deep_stack(partial(_matcher, table, notation), len(notation))
        if not matcher.is_error():
            return GrammarConstraint(matcher, table, field)
    raise unusable(field, first_sentence(matcher.get_error()))


def _matcher(table: TokenTable, notation: str) -> LLMatcher:
    from llguidance import LLMatcher

    return LLMatcher(table.tokenizer, notation, log_level=0, limits=limits())
