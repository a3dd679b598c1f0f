"""A file tree with some paths changed or gone, over one that many nodes share: nothing is copied or written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from healthd.core.errors import SourceError, SourceMissing
from healthd.core.node import Tree
from healthd.testing import Entry, FakeTree

T = TypeVar("T")


class Built:
    """A ``Tree`` that is not changed once it is built: each answer of ``tree`` is asked for once, an error too."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._texts: dict[str, str | SourceError] = {}
        self._names: dict[str, tuple[str, ...] | SourceError] = {}
        self._there: dict[str, bool | SourceError] = {}
        self._targets: dict[str, str | SourceError] = {}

    def read(self, path: str) -> str:
        """The text of a file."""
        return _once(self._texts, self._tree.read, path)

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a folder."""
        return _once(self._names, self._tree.names, path)

    def exists(self, path: str) -> bool:
        """Whether the path is there."""
        return _once(self._there, self._tree.exists, path)

    def target(self, path: str) -> str:
        """The last part of where a link leads."""
        return _once(self._targets, self._tree.target, path)

    def may_open(self, path: str) -> bool:
        """Asked each time: it is rare."""
        return self._tree.may_open(path)


def _once(known: dict[str, T | SourceError], ask: Callable[[str], T], path: str) -> T:
    if path not in known:
        try:
            known[path] = ask(path)
        except SourceError as error:
            known[path] = error
    answer = known[path]
    if isinstance(answer, SourceError):
        raise answer
    return answer


class Overlay:
    """A ``Tree``. What was put there wins, what was taken away is missing with all below it, the rest is the base's."""

    def __init__(self, base: Tree) -> None:
        self._base, self._gone = base, set[str]()
        self._own = FakeTree()

    def put(self, path: str, entry: Entry) -> None:
        """Text, a link or an error in the place of what was there."""
        self._own.entries[path] = entry

    def take(self, path: str) -> None:
        """Take a path away, with all below it. Raises SourceMissing for one that is not there anyway."""
        if not self.exists(path):
            raise SourceMissing(f"{path}: not in this tree, so it cannot be taken away")
        self._gone.add(path)
        self._own = FakeTree({at: entry for at, entry in self._own.entries.items() if not _is_in(at, path)})

    def read(self, path: str) -> str:
        """The text of a file."""
        return self._own.read(path) if self._is_own(path) else self._below(path).read(path)

    def names(self, path: str) -> tuple[str, ...]:
        """The names of both, without those that are gone."""
        added = self._added(path)
        try:
            base = self._below(path).names(path)
        except SourceMissing:
            if not added:
                raise
            base = ()
        prefix = f"{path}/" if path else ""
        return tuple(sorted({*added, *(name for name in base if f"{prefix}{name}" not in self._gone)}))

    def exists(self, path: str) -> bool:
        """Whether the path is in either."""
        if self._own.exists(path):
            return True
        try:
            return self._below(path).exists(path)
        except SourceMissing:
            return False

    def target(self, path: str) -> str:
        """The last part of where a link leads."""
        return self._own.target(path) if self._is_own(path) else self._below(path).target(path)

    def may_open(self, path: str) -> bool:
        """Whether it is there, and was not put there as an error."""
        return self._own.may_open(path) if self._is_own(path) else self.exists(path)

    def _added(self, path: str) -> tuple[str, ...]:
        try:
            return self._own.names(path)
        except SourceMissing:
            return ()

    def _is_own(self, path: str) -> bool:
        return path in self._own.entries or isinstance(self._own.entries.get(""), SourceError)

    def _below(self, path: str) -> Tree:
        if any(_is_in(path, gone) for gone in self._gone):
            raise SourceMissing(f"{path}: taken away")
        return self._base


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
