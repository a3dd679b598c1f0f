"""One value: checked against its type, described in words, and written as TOML.

This module knows types only: no key, no file, no section.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, asdict, fields

SHOWN_CHARACTERS = 60
_LONG = 200
_LENGTH = r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(ms|[smhd])[a-z]*"
_UNIT_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    Any: "any value",
}


def converted(value: Any, hint: Any) -> Any:
    """``value``, as TOML gives it, as the type ``hint``. Raises ValueError where it does not fit."""
    try:
        result = msgspec.convert(value, hint)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ValueError(str(error)) from error
    if isinstance(result, float) and math.isnan(result):
        raise ValueError("nan cannot be compared with a limit")
    return result


def row_class(hint: Any) -> Any:
    """The settings class of each row, where ``hint`` is a list of tables; else None."""
    row = get_args(hint)[0] if get_origin(hint) in (tuple, list) else None
    return row if is_section(row) else None


def is_section(hint: Any) -> bool:
    """Whether a type is a settings class."""
    return isinstance(hint, type) and issubclass(hint, Struct)


def sections_of(cls: type) -> dict[str, type]:
    """The fields of a settings class that are settings classes themselves."""
    return {name: hint for name, hint in get_type_hints(cls).items() if is_section(hint)}


def default_of(item: FieldInfo) -> Any:
    """The default of a setting; msgspec.NODEFAULT where it has none."""
    return item.default if item.default_factory is NODEFAULT else item.default_factory()


def from_text(text: str, hint: Any) -> Any:
    """``text`` of an environment variable as a value: the text itself if the type allows it, else parsed as TOML."""
    try:
        return converted(text, hint)
    except ValueError:
        return converted(as_toml(text), hint)


def expected(hint: Any) -> str:
    """The allowed values of the type ``hint``, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        words = [part.description for part in arguments[1:] if isinstance(part, msgspec.Meta) and part.description]
        return words[-1] if words else expected(arguments[0])
    if origin is Literal:
        return _one_of(arguments)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _one_of(member.value for member in hint)
    if origin in (Union, UnionType):
        return " or ".join(expected(part) for part in arguments if part is not NoneType)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys = "" if arguments[0] is str else f"keys are {expected(arguments[0])}, and whose "
        return f"a table whose {keys}values are {expected(arguments[1])}"
    if row_class(hint):
        return f"a list of tables, each with {', '.join(item.name for item in fields(arguments[0]))}"
    if origin is not None:
        return f"a list, each element {expected(arguments[0])}"
    return _WORDS.get(hint, f"a value of type {getattr(hint, '__name__', hint)}")


def choices(hint: Any) -> tuple[str, ...]:
    """The words that ``hint`` allows, if it is a choice of words."""
    if get_origin(hint) is Literal:
        return tuple(str(choice) for choice in get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return tuple(str(member.value) for member in hint)
    return ()


def instead(value: Any, hint: Any, otherwise: str) -> str:
    """The end of a message about a value that does not fit: the value of type ``hint`` that was probably meant, as
    TOML, which is the most similar word of a choice or the seconds of a length of time; else ``otherwise``."""
    if not isinstance(value, str):
        return otherwise
    if guess := close_match(value, choices(hint)):
        return f"did you mean {toml_value(guess)}?"
    length = re.fullmatch(_LENGTH, value.lower())
    if length is None or not expected(hint).startswith("seconds"):
        return otherwise
    return f"did you mean {float(length[1]) * _UNIT_S[length[2]]:g}?"


def toml_value(value: Any) -> str:
    """``value`` as TOML writes it. None and whole sections, which TOML cannot write as a value, give the empty text.

    A table omits values that are None.
    """
    match value:
        case None:
            return ""
        case Enum():
            return toml_value(value.value)
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int():
            return str(value) if value.bit_length() < 4_096 else hex(value)
        case float():
            return repr(value)
        case Mapping():
            given = {str(name): item for name, item in value.items() if item is not None}
            pairs = (f"{toml_value(name)} = {toml_value(item)}" for name, item in given.items())
            return "{" + ", ".join(pairs) + "}"
        case set() | frozenset():
            return "[" + ", ".join(sorted(toml_value(item) for item in value)) + "]"
        case list() | tuple():
            return "[" + ", ".join(toml_value(plain(item)) for item in value) + "]"
        case _:
            return "" if isinstance(value, Struct) else str(value)


def toml_lines(value: Any) -> str:
    """The same, a long list with an element on each line: healthd reads no line of more than 1,024 characters."""
    text = toml_value(value)
    if len(text) <= _LONG or not isinstance(value, list | tuple | set | frozenset):
        return text
    items = [toml_value(plain(item)) for item in value]
    return "\n".join(
        ["[", *(f"    {item}," for item in (items if isinstance(value, list | tuple) else sorted(items))), "]"]
    )


def plain(value: Any) -> Any:
    """``value`` with every settings class in it as a table."""
    if isinstance(value, Struct):
        return {name: plain(each) for name, each in asdict(value).items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def shortened(value: Any) -> str:
    """``value`` as TOML, shortened for a message."""
    text = toml_value(value if not isinstance(value, str) else value[: SHOWN_CHARACTERS * 2])
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def close_match(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like ``word``, or None."""
    import difflib

    return next(iter(difflib.get_close_matches(word[:SHOWN_CHARACTERS], list(known), n=1)), None)


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """The end of a message about an unknown name: the most similar known one, else ``otherwise``."""
    guess = close_match(word, known)
    return f"did you mean {guess}?" if guess else otherwise


def _one_of(words: Iterable[Any]) -> str:
    return "one of " + ", ".join(toml_value(word) for word in words)


def as_toml(text: str) -> Any:
    """``text`` as one TOML value. Raises ValueError; a text of several lines could smuggle in further keys."""
    if "\n" in text:
        raise ValueError("a value of several lines")
    return tomllib.loads(f"value = {text}")["value"]
