"""A file tree with some paths changed or gone, over one that many nodes share: nothing is copied or written."""

from __future__ import annotations

from healthd.core.errors import SourceError, SourceMissing
from healthd.core.node import Tree
from healthd.testing import Entry, FakeTree


class Overlay:
    """A ``Tree``. What was put there wins, what was taken away is missing with all below it, the rest is the base's."""

    def __init__(self, base: Tree) -> None:
        self._base, self._gone = base, set[str]()
        self._entries: dict[str, Entry] = {}

    def put(self, path: str, entry: Entry) -> None:
        """Text, a link or an error in the place of what was there."""
        self._entries[path] = entry

    def take(self, path: str) -> None:
        """Take a path away, with all below it. Raises SourceMissing for one that is not there anyway."""
        if not self.exists(path):
            raise SourceMissing(f"{path}: not in this tree, so it cannot be taken away")
        self._gone.add(path)
        self._entries = {at: entry for at, entry in self._entries.items() if not _is_in(at, path)}

    def read(self, path: str) -> str:
        """The text of a file."""
        return FakeTree(self._entries).read(path) if self._is_own(path) else self._below(path).read(path)

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
        if FakeTree(self._entries).exists(path):
            return True
        try:
            return self._below(path).exists(path)
        except SourceMissing:
            return False

    def target(self, path: str) -> str:
        """The last part of where a link leads."""
        return FakeTree(self._entries).target(path) if self._is_own(path) else self._below(path).target(path)

    def may_open(self, path: str) -> bool:
        """Whether it is there, and was not put there as an error."""
        return FakeTree(self._entries).may_open(path) if self._is_own(path) else self.exists(path)

    def _added(self, path: str) -> tuple[str, ...]:
        try:
            return FakeTree(self._entries).names(path)
        except SourceMissing:
            return ()

    def _is_own(self, path: str) -> bool:
        return path in self._entries or isinstance(self._entries.get(""), SourceError)

    def _below(self, path: str) -> Tree:
        if any(_is_in(path, gone) for gone in self._gone):
            raise SourceMissing(f"{path}: taken away")
        return self._base


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
