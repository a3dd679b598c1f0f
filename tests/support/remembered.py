"""What an object keeps in memory: every text that can be reached from it."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator

_LEADS_ELSEWHERE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)


def texts_in(thing: object) -> Iterator[str]:
    """Of its fields, and of theirs; not of functions and methods, which are given to it."""
    seen, waiting = set[int](), [thing]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _LEADS_ELSEWHERE):
            continue
        seen.add(id(each))
        if isinstance(each, str):
            yield each
        else:
            waiting += gc.get_referents(each)
            waiting += each if isinstance(each, dict) else ()  # whose texts for keys the collector leaves out
