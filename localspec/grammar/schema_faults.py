"""What of a JSON schema cannot be enforced, and where it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from localspec.errors import InvalidRequest
from localspec.grammar.notation import fault_of, notations_of_schema
from localspec.grammar.schema_places import (
    DEFINITIONS,
    Place,
    changed_at,
    inner_places,
    moved,
    part_at,
    path_of,
)

MOST_FAULTS = 16
"""Of one schema; with more of them nothing of it is enforced."""
MOST_LOOKS = 400
MOST_READ = 4_000_000
"""Looks at a schema, and characters read by them, to find where a fault stands: about a second."""
_HOME = "schema"
_CARRYING = ("properties", "type")
"""Keywords that are left out only where no other one will do."""


@dataclass(frozen=True)
class Fault:
    """place: of what cannot be enforced; () is the whole schema. reason: without a full stop."""

    place: Place
    reason: str

    @property
    def path(self) -> str:
        """The place in one word, as `properties.city.pattern`; "" for the whole schema."""
        return path_of(self.place)


def enforceable(schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Fault, ...]]:
    """`schema` without what cannot be enforced, and what that is.

    What is left allows everything that `schema` allows, where nothing that was left out stands below a `oneOf`.
    """
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        return {}, (Fault((), f"it is no JSON ({error})"),)
    kept, faults = _enforceable(text)
    return json.loads(kept), faults


def first_fault(schema: object) -> Fault | None:
    """The first of what cannot be enforced of a schema, given as a dict or as its JSON text; None if all can."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        return next(iter(enforceable(value)[1]), None) if isinstance(value, Mapping) else None
    except ValueError:
        return None


@lru_cache(maxsize=256)
def _enforceable(text: str) -> tuple[str, tuple[Fault, ...]]:
    """The same for schemas as JSON texts. Clients send the same tools with every request."""
    schema: Any = json.loads(text)
    faults: list[Fault] = []
    while reason := _fault_in(schema):
        if len(faults) == MOST_FAULTS:
            return "{}", (Fault((), f"it has more than {MOST_FAULTS} parts like {faults[0].path}"),)
        holder, keyword = _Search(schema, reason, min(MOST_LOOKS, MOST_READ // len(text))).found()
        faults.append(Fault(holder if keyword is None else (*holder, keyword), reason))
        schema = _without(schema, holder, keyword)
    return json.dumps(schema), tuple(faults)


def _fault_in(schema: Any) -> str:
    try:
        (notation,) = notations_of_schema(schema)
    except InvalidRequest as error:
        return error.message.rstrip(".")
    return fault_of(notation)


def _without(schema: Any, holder: Place, keyword: str | None) -> Any:
    """`schema` without a keyword of the schema at `holder`; without one, with a schema there that allows everything."""

    def change(part: Mapping[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in part.items() if name != keyword and keyword is not None}
        return kept if keyword != "oneOf" or "anyOf" in kept else {**kept, "anyOf": part["oneOf"]}

    return changed_at(schema, holder, change)


class _Search:
    """Goes down to the innermost schema with the same fault, and there to the keyword."""

    def __init__(self, schema: Any, reason: str, looks: int) -> None:
        self._schema, self._reason, self._looks = schema, _comparable(reason), looks
        self._faulty: dict[Place, bool] = {}

    def found(self) -> tuple[Place, str | None]:
        """The schema at fault and the keyword, or None where it is no single one."""
        try:
            return self._in((), {()}) or ((), None)
        except RecursionError:
            return (), None

    def _in(self, here: Place, seen: set[Place]) -> tuple[Place, str] | None:
        """The keyword at fault in the schema at `here`, in those inside it, or in those it refers to."""
        leading = set()
        for place, keyword in _parts(self._schema, here):
            if self._is_faulty(place):
                leading.add(keyword)
                if place not in seen:
                    seen.add(place)
                    if found := self._in(place, seen):
                        return found
        own = [keyword for keyword in part_at(self._schema, here) if keyword not in leading]
        for keyword in sorted(own, key=_CARRYING.count):
            if self._fault_at(here, _without(self._schema, here, keyword)) not in (self._reason, None):
                return here, keyword
        return None

    def _is_faulty(self, place: Place) -> bool:
        if place not in self._faulty:
            self._faulty[place] = self._fault_at(place, self._schema) == self._reason
        return self._faulty[place]

    def _fault_at(self, place: Place, schema: Any) -> str | None:
        """What the library says of the part at `place` alone; None when it was asked often enough."""
        if not self._looks:
            return None
        self._looks -= 1
        home = f"#/{DEFINITIONS}/{_HOME}"
        pointer = "".join(f"/{quote(str(key).replace('~', '~0').replace('/', '~1'))}" for key in place)
        return _comparable(_fault_in({DEFINITIONS: {_HOME: moved(schema, home)}, "$ref": home + pointer}))


def _comparable(reason: str) -> str:
    """The same for a schema that stands alone and one that was moved: references get longer by that."""
    return re.sub(r"\d+", "", reason.replace(f"/{DEFINITIONS}/{_HOME}", ""))


def _parts(schema: Any, here: Place) -> Iterator[tuple[Place, str]]:
    """Schemas inside the one at `here`, and what it refers to; each with the keyword that leads there."""
    part = part_at(schema, here)
    for keyword, *rest in inner_places(part):
        if keyword not in (DEFINITIONS, "definitions"):  # counts where something refers to it
            yield (*here, keyword, *rest), str(keyword)
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        yield from ((place, "$ref") for place in _referred(schema, reference))


def _referred(schema: Any, reference: str) -> Iterator[Place]:
    """The place that a local reference points to, if it points to a schema."""
    place: Place = ()
    for step in unquote(reference[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        holder = part_at(schema, place)
        if isinstance(holder, list) and key.isdigit() and int(key) < len(holder):
            place = (*place, int(key))
        elif isinstance(holder, Mapping) and key in holder:
            place = (*place, key)
        else:
            return
    if isinstance(part_at(schema, place), Mapping):
        yield place
