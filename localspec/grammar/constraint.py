"""Grammar or JSON schema -> which tokens may come next."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from localspec.checks import shown
from localspec.compute.vocabulary import Vocabulary
from localspec.decoding.sampler import Constraint
from localspec.errors import InvalidRequest
from localspec.grammar.lark import lark_of_gbnf
from localspec.grammar.matching import GrammarConstraint, first_sentence
from localspec.grammar.token_table import TokenTable, table_of
from localspec.system.deep_stack import with_deep_stack

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

LONGEST_SCHEMA = 1_000_000
"""Characters."""
WHITESPACE = r" |\r?\n[ \t]{0,100}"
"""Between the parts of JSON: a space or a new line with its indentation. Endless space would never fail, and a model
that has begun with it may not stop."""
MOST_ITEMS = 2_000_000
"""Steps of the parser for one mask, a fraction of a second; the library's own limit, a fortieth of it, is too low for
words of a large vocabulary read character by character."""
OPTIONS = "x-guidance"
DEFAULTS = {"whitespace_pattern": WHITESPACE, "json_allow_general_unicode_escapes": True}
MOST_LEXER_STATES = 50_000
"""Each takes one or two kilobytes; the library's own limit is five times as many."""

NO_FORCING = '%llguidance {"no_forcing": true}\n'
"""Allow every token that fits. Where the text is certain, the library would otherwise allow only the tokens that it
would use itself, and the answer would depend on how it cuts text into tokens."""

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
    return constraint_on(table, notations, field)


def check_constraint(
    *, grammar: str | None = None, json_schema: Mapping[str, Any] | str | bool | None = None
) -> None:
    """Raise those `InvalidRequest`s of `token_constraint` that need no model, so before one is loaded."""
    if grammar is None and json_schema is None:
        return
    notations, field = _notations(grammar, json_schema)
    reasons = [with_deep_stack(partial(_fault, notation), len(notation)) for notation in notations]
    if all(reasons):
        raise _unusable(field, first_sentence(reasons[-1]))


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


def _fault(notation: str) -> str:
    try:
        from llguidance import LLMatcher
    except ImportError:  # `token_constraint` says it in full
        return ""
    return str(LLMatcher.validate_grammar(notation, limits=_limits()))


def constraint_on(table: TokenTable, notations: Sequence[str], field: str) -> GrammarConstraint:
    """The constraint of a grammar in the library's own notation; the first of `notations` that it can read.

    Raises `InvalidRequest` naming `field`, with the library's reason, when it can read none.
    """
    for notation in notations:
        matcher = with_deep_stack(partial(_matcher, table, notation), len(notation))
        if not matcher.is_error():
            return GrammarConstraint(matcher, table, field)
    raise _unusable(field, first_sentence(matcher.get_error()))


def _matcher(table: TokenTable, notation: str) -> LLMatcher:
    from llguidance import LLMatcher

    return LLMatcher(table.tokenizer, notation, log_level=0, limits=_limits())


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(step_max_items=MOST_ITEMS, max_lexer_states=MOST_LEXER_STATES, verbose_errors=False)


def notations_of_grammar(grammar: object) -> list[str]:
    """A GBNF text in the library's notation, in ways that mean the same. Raises `InvalidRequest`."""
    if not isinstance(grammar, str):
        raise InvalidRequest(f"grammar is {shown(grammar)}.", "It must be a text in GBNF.", name="grammar")
    return [NO_FORCING + notation for notation in lark_of_gbnf(grammar)]


def notations_of_schema(schema: object) -> list[str]:
    """A JSON schema in the library's notation. Raises `InvalidRequest`."""
    return [f"{NO_FORCING}start: %json {_schema_text(schema)}\n"]


def _schema_text(schema: object) -> str:
    """The schema, a JSON object, as text. Raises `InvalidRequest`."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        if value is False:
            raise InvalidRequest("json_schema is false.", "No JSON satisfies that.", name="json_schema")
        value = {} if value is True else value
        if not isinstance(value, Mapping):
            raise InvalidRequest(
                f"json_schema is {shown(schema)}.",
                "It must be an object, or true for any JSON.",
                name="json_schema",
            )
        # Under this key the library looks for options; what the caller has put there takes precedence.
        options = DEFAULTS | dict(value.get(OPTIONS, {}))
        text = json.dumps({**value, OPTIONS: options}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise _unusable("json_schema", f"it is no JSON ({first_sentence(str(error))})") from None
    if len(text) > LONGEST_SCHEMA:
        raise InvalidRequest(
            f"json_schema has {len(text)} characters.",
            f"At most {LONGEST_SCHEMA} are read.",
            name="json_schema",
        )
    return text


def _unusable(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"The {field} cannot be used: {reason}.", "Correct or simplify it.", name=field)
