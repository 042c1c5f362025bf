"""References within one JSON schema: resolution of `$ref`, `$dynamicRef`, `$id` and anchors, by the rules of the
schema's draft.

    {"$id": "https://x.org/a", "$defs": {"b": {"$id": "b", "$anchor": "here"}}}

    https://x.org/a ─► the root        https://x.org/b, https://x.org/b#here ─► /$defs/b
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from lmc.fsm.json_shapes import SchemaPointer, wrong

_DRAFT = re.compile(r"json-schema\.org/(?:draft-0?([34678])|draft/(20\d\d)-\d\d)/")
NEWEST = 2020
_NAMING = ("$id", "id", "$anchor", "$dynamicAnchor")
_VALUES = frozenset("enum const default examples example".split())  # their values are not schemas
_NAMED = frozenset("properties patternProperties $defs definitions dependentSchemas dependencies".split())  # schemas by non-keyword names


def draft_of(root: Any) -> int:
    """Return the draft, 3, 4, 6, 7, 2019 or 2020, as `$schema` says; the newest without it."""
    said = root.get("$schema") if isinstance(root, dict) else None
    found = _DRAFT.search(said) if isinstance(said, str) else None
    return int(found[1] or found[2]) if found is not None else NEWEST


def sharing() -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Return an `object_pairs_hook` of json.loads that makes one object of equal ones, written alike and in the same order."""
    made: dict[Hashable, dict[str, Any]] = {}

    def key(value: Any) -> Hashable:
        kind = type(value)
        if kind is str:
            return value
        if kind is dict:
            return id(value)
        return (kind, *map(key, value)) if kind is list else (kind, str(value))  # 1.0 is written otherwise than 1, and True is not 1

    def shared(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        same = tuple([(name, key(value)) for name, value in pairs])
        if (found := made.get(same)) is None:
            found = made[same] = dict(pairs)
        return found

    return shared


class References:
    """References of one root."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.draft = draft_of(root)
        self._dynamic: dict[str, list[str]] = {}  # by dynamic anchor, the resources that have it
        self._first: dict[int, SchemaPointer] = {}  # by id of a schema, which it keeps alive

    @property
    def overrides(self) -> bool:
        """Return whether $ref overrides all its siblings."""
        return self.draft <= 7

    def first(self, place: SchemaPointer) -> SchemaPointer:
        """Return where the same object came first: it means the same there, unless addresses within the document decide what it refers to."""
        return place if self._has_names_inside else self._first.setdefault(id(place.schema), place)

    def target(self, place: SchemaPointer, keyword: str) -> SchemaPointer:
        """Return the target of a reference. Raises ConstraintError if it is not in the document."""
        ref = place.schema[keyword]
        if not isinstance(ref, str):
            raise wrong(f"{place.pointer}/{keyword}", f"is {ref!r}; a reference is text")
        if keyword == "$recursiveRef":
            return self._recursive(place)
        base, fragment = self._joined(self._base(place), ref)
        resource = self._places.get(base)
        if resource is None and ref.startswith("#"):
            resource = SchemaPointer(self.root, "")
        if resource is None:
            raise wrong(f"{place.pointer}/{keyword}", f"is {ref!r}, which is not in this document; put what it means under $defs")
        if not fragment or fragment.startswith("/"):
            return self._below(resource, fragment, place, ref)
        found = self._places.get(f"{base}#{fragment}")
        if found is None:
            raise wrong(f"{place.pointer}/{keyword}", f"is {ref!r}, which leads nowhere")
        if keyword == "$dynamicRef" and base in self._dynamic.get(fragment, ()):  # the outermost one: that of the root, if it has one
            outer = self._base(SchemaPointer(self.root, ""))
            if outer in self._dynamic[fragment]:
                return self._places[f"{outer}#{fragment}"]
            if len(self._dynamic[fragment]) > 1:
                raise wrong(
                    f"{place.pointer}/{keyword}",
                    f"is {ref!r}, which several parts define and the root does not: which of them is meant depends on the way to it",
                )
        return found

    def _joined(self, base: str, ref: str) -> tuple[str, str]:
        """Return address and fragment of a reference."""
        if ref.startswith("#"):
            return base, ref[1:]
        try:
            return tuple(urldefrag(urljoin(base, ref)))  # pyright: ignore[reportReturnType]
        except ValueError:
            return ref, ""

    def _recursive(self, place: SchemaPointer) -> SchemaPointer:
        resource = self._places[self._base(place)]
        if not isinstance(resource.schema, dict) or resource.schema.get("$recursiveAnchor") is not True:
            return resource
        if self.root.get("$recursiveAnchor") is True:
            return SchemaPointer(self.root, "")
        raise wrong(f"{place.pointer}/$recursiveRef", "leads to what the way to it decides, for the root has no $recursiveAnchor; use $ref")

    def _below(self, resource: SchemaPointer, fragment: str, place: SchemaPointer, ref: str) -> SchemaPointer:
        found = resource
        for step in unquote(fragment)[1:].split("/") if fragment else ():
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found.at(int(step) if isinstance(found.schema, list) else step)
            except (KeyError, IndexError, TypeError, ValueError):
                raise wrong(f"{place.pointer}/$ref", f"is {ref!r}, which leads nowhere") from None
        return found

    def _base(self, place: SchemaPointer) -> str:
        """Return the address that references at a location are relative to."""
        pointer = place.pointer
        while pointer not in self._bases:
            pointer = pointer.rpartition("/")[0]
        return self._bases[pointer]

    @property
    def _bases(self) -> Mapping[str, str]:
        """Return, by pointer of each resource, its address."""
        return self._resources[0]

    @property
    def _places(self) -> Mapping[str, SchemaPointer]:
        """Return, by address, resources and schemas with an anchor."""
        return self._resources[1]

    @cached_property
    def _resources(self) -> tuple[Mapping[str, str], Mapping[str, SchemaPointer]]:
        bases, places = {"": ""}, dict[str, SchemaPointer]()
        root = SchemaPointer(self.root, "")
        for place, base in self._schemas(root, "") if self._has_names_inside or not isinstance(self.root, dict) else ((root, ""),):
            schema: Any = place.schema
            identity = self._identity(schema)
            if identity is not None:
                address, anchor = self._joined(base, identity)
                if anchor and self.draft <= 7:
                    places.setdefault(f"{address}#{anchor}", place)
                if address != base or not place.pointer:
                    bases[place.pointer] = base = address
                    places.setdefault(address, place)
            elif not place.pointer:
                places[""] = place
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := schema.get(keyword), str):
                    places.setdefault(f"{base}#{name}", place)
                    if keyword == "$dynamicAnchor":
                        self._dynamic.setdefault(name, []).append(base)
        return bases, places

    @cached_property
    def _has_names_inside(self) -> bool:
        """Return whether a part of the document, other than its root, may have an address or an anchor."""
        todo: list[Any] = list(self.root.values()) if isinstance(self.root, dict) else []
        while todo:
            at = todo.pop()
            if isinstance(at, dict):
                if any(isinstance(at.get(keyword), str) for keyword in _NAMING if keyword in at):
                    return True
                todo += at.values()
            elif isinstance(at, list):
                todo += at
        return False

    def _identity(self, schema: Mapping[str, Any]) -> str | None:
        if "$ref" in schema and self.overrides:
            return None
        found = schema.get("id" if self.draft <= 4 else "$id")
        return found if isinstance(found, str) else None

    def _schemas(self, place: SchemaPointer, base: str) -> Iterator[tuple[SchemaPointer, str]]:
        """Yield all schemas, each with the address of its resource."""
        todo: list[tuple[SchemaPointer, str]] = [(place, base)]
        while todo:
            place, base = todo.pop()
            if isinstance(place.schema, list):
                todo += [(place.at(i), base) for i in range(len(place.schema))]
                continue
            if not isinstance(place.schema, dict):
                continue
            yield place, base
            identity = self._identity(place.schema)
            inner = self._joined(base, identity)[0] if identity is not None else base
            for keyword, value in place.schema.items():
                if keyword in _VALUES or not isinstance(value, dict | list):
                    continue
                below = place.at(keyword)
                if keyword in _NAMED and isinstance(value, dict):
                    todo += [(below.at(name), inner) for name in value]
                else:
                    todo.append((below, inner))
