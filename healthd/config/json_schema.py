"""The JSON Schema of a configuration file, for editors, made from the settings classes.

It is JSON Schema draft 4, the newest that taplo supports, the engine of Even Better TOML: exclusive limits are flags
there, and keys beside a ``$ref`` are ignored. Patterns have the same meaning in Python, ECMAScript and Rust. Rules
across several keys (``__post_init__``) are left to the loader. This module prints nothing, and reads only the source
text of settings classes, for their docstrings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT
from msgspec.structs import fields

from healthd.config.keys import dotted
from healthd.config.match import NAME, NOT_IN_A_MATCH
from healthd.config.report import documented_fields
from healthd.config.schema import config as schema
from healthd.config.schema.rule import PolicyRule
from healthd.config.values import default_of, plain, row_class, sections_of

DRAFT = "http://json-schema.org/draft-04/schema#"
FILE_NAME = "config.schema.json"
"""The name of the file in a configuration's ``#:schema`` line, in the configuration's own folder."""

_TITLE = "Configuration of healthd"
_ABOUT = "One file of healthd's configuration. Its place, and the order of precedence: docs/reference/config.md."
# Words of newer drafts that have another form in draft 4, or no meaning for an editor.
FLAGS = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def config_schema(checks: Mapping[str, type]) -> dict[str, Any]:
    """The schema of one file. ``checks``: each check's name and settings class."""
    definitions: dict[str, Any] = {}
    hints = get_type_hints(schema.Config)
    sections = {name: _section(cls, (name,), definitions) for name, cls in hints.items() if name != "checks"}
    sections["checks"] = _checks(checks, definitions)
    within = {name: ref for name, ref in sections.items() if name not in NOT_IN_A_MATCH}
    conditions = _properties(schema.MatchSection, ())
    match = _table({**conditions, **within}, about=schema.MatchSection.__doc__)
    return {
        "$schema": DRAFT,
        "title": _TITLE,
        "description": _ABOUT,
        **_table({**sections, NAME: {"type": "array", "items": match}}),
        "definitions": definitions,
    }


def config_schema_text(checks: Mapping[str, type]) -> str:
    """The same as the text of a file."""
    return json.dumps(config_schema(checks), indent=2, ensure_ascii=False) + "\n"


def policy_schema_text() -> str:
    """The schema of a policy's own file, as the text of a file."""
    title = {"type": "string", "description": "The purpose of the policy, on one line."}
    about = "The rules for each fault. How to write a policy: docs/how-to/write-a-policy.md."
    table = _table({"title": title, "rule": _of(tuple[PolicyRule, ...])}, about=about)
    made = {"$schema": DRAFT, "title": "A policy of healthd", **table}
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------------------------------------------------------------
# tables


def _section(cls: type, path: tuple[str, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    """A reference to the section's definition, which is added, with those of the sections below it."""
    below = {name: _section(inner, (*path, name), definitions) for name, inner in sections_of(cls).items()}
    definitions[dotted(path)] = _table({**_properties(cls, below), **below}, about=cls.__doc__)
    return _reference(dotted(path))


def _checks(checks: Mapping[str, type], definitions: dict[str, Any]) -> dict[str, Any]:
    common = _properties(schema.CheckSection, ())
    for name, cls in checks.items():
        own = _properties(cls, ()) if fields(cls) else {}
        definitions[f"checks.{name}"] = _table({**common, **own}, about=schema.CheckSection.__doc__)
    definitions["checks"] = _table({name: _reference(f"checks.{name}") for name in checks})
    return _reference("checks")


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/definitions/{name}"}


def _table(properties: Mapping[str, Any], *, about: str | None = None) -> dict[str, Any]:
    described = {"description": " ".join(about.split())} if about else {}
    return {**described, "type": "object", "properties": dict(properties), "additionalProperties": False}


# ---------------------------------------------------------------------------------------------------------------------
# keys


def _properties(cls: type, below: Iterable[str]) -> dict[str, Any]:
    """The keys of a settings class that are values, each with its docstring and, where it has one, its default."""
    hints = get_type_hints(cls, include_extras=True)
    docs = {row.name: row.doc for row in documented_fields(cls)}
    made: dict[str, Any] = {}
    for item in fields(cls):
        if item.name in below:
            continue
        default = default_of(item)
        given = default is not NODEFAULT and default is not None
        shown = {"default": msgspec.to_builtins(plain(default))} if given else {}
        made[item.name] = {**_of(hints[item.name]), "description": docs[item.name], **shown}
    return made


def _of(hint: Any) -> dict[str, Any]:
    """The schema of one value. TOML has no null: a value that may be None is optional instead."""
    if row := row_class(hint):
        needed = [each.name for each in fields(row) if each.required]
        return {"type": "array", "items": {**_table(_row(row), about=row.__doc__), "required": needed}}
    parts = [part for part in get_args(hint) if part is not NoneType]
    if get_origin(hint) in (Union, UnionType):
        return _of(parts[0]) if len(parts) == 1 else {"anyOf": [_of(part) for part in parts]}
    if get_origin(hint) is Annotated and get_origin(parts[0]) in (Union, UnionType):
        return _of(parts[0])
    raw = msgspec.json.schema(hint)
    made: dict[str, Any] = _draft_4(_inlined(raw, raw.get("$defs", {})))
    return made


def _row(row: type) -> dict[str, Any]:
    try:
        return _properties(row, ())
    except ValueError:  # rows of a check's own need no docstring under each field
        return {name: _of(hint) for name, hint in get_type_hints(row, include_extras=True).items()}


def _inlined(part: Any, named: Mapping[str, Any]) -> Any:
    """The schema with each named part in its place, and without the names."""
    if isinstance(part, list):
        return [_inlined(each, named) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(named[part["$ref"].rpartition("/")[2]], named)
    return {word: _inlined(each, named) for word, each in part.items() if word not in ("$defs", "title")}


def _draft_4(part: Any) -> Any:
    if isinstance(part, list):
        return [_draft_4(each) for each in part]
    if not isinstance(part, dict):
        return part
    old: dict[str, Any] = {}
    for word, value in part.items():
        if word in FLAGS:
            old |= {FLAGS[word]: value, word: True}
        elif word == "pattern":
            old[word] = value.replace(r"\Z", "$").replace(r"\0", r"\x00")
        else:
            old[word] = _draft_4(value)
    return old
