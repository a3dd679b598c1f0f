"""Runs a test in a process of its own, in which no thread of an earlier test is left."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, ParamSpec

P = ParamSpec("P")


def in_own_process(test: Callable[P, None]) -> Callable[P, None]:
    """The test, run in a fresh interpreter with one thread. Its fixtures must be values that pickle can carry, such as
    ``tmp_path``; what it raises is raised here, with the traceback of there."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(_run, test.__module__, test.__name__, args, kwargs).result()

    return run


def _run(module: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    getattr(importlib.import_module(module), name).__wrapped__(*args, **kwargs)
