"""Handoff records of a healthd without NodeHealths: JSON in annotations of the Lease ``healthd-marks``.

An agent moves its own record to its NodeHealth. Until then the controller reads it here and answers here, so that an
older agent sees the answer while the fleet is upgraded. Nothing else writes there. This module, and the rights on that
Lease, go once no such agent is left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct, field

from healthd.core.encodable import NOT_JSON
from healthd.core.errors import BackendRefused
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, Missing, ResourceKind, compare_and_swap
from healthd.remediation.orchestrators.kubernetes.node_health_api import NodeHealths
from healthd.remediation.orchestrators.kubernetes.objects.budget import annotations_of, key_of
from healthd.remediation.records.handoff import parse

MARKS, MARK = "healthd-marks", "mark.healthd.io/"
_MARK_CHARACTERS = 2000


class Lease(Struct, frozen=True, kw_only=True):
    """The Lease as it was read at ``version``. ``texts``: node to handoff record; ``odd``: the nodes whose annotation
    is no record, or names another node."""

    version: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    odd: frozenset[str] = frozenset()

    @property
    def nodes(self) -> set[str]:
        """Every node that has a key there."""
        return {*self.texts, *self.odd}


class OldRecords:
    """``namespace``: of the Lease. Once it was found missing it is not asked for again."""

    def __init__(self, api: KubeApi, namespace: str, pause: Callable[[float], object] = lambda _: None) -> None:
        self._api, self._namespace, self._pause = api, namespace, pause
        self._is_gone = False
        self._moved: set[str] = set()

    def read(self) -> Lease:
        """All of them. Raises BackendUnknown."""
        if self._is_gone:
            return Lease()
        try:
            version, notes = annotations_of(self._api.get(ResourceKind.LEASE, MARKS, namespace=self._namespace))
        except Missing:
            self._is_gone = True
            return Lease()
        return Lease(version=version, texts=marks_in(notes), odd=odd_marks(notes))

    def move(self, node: str, healths: NodeHealths) -> None:
        """Move this node's record to its NodeHealth, unless it has one there: create, then drop. An answer that the
        controller writes between the two is moved too. Done once; raises BackendError."""
        if self._is_gone or node in self._moved:
            return
        copied = ""

        def once(_: bool) -> None:
            nonlocal copied
            there = self.read()
            if (text := there.texts.get(node, "")) and parse(text) is not None:
                seen = healths.read(node)
                if text != copied and (seen is None or seen.text in ("", copied)):
                    healths.leave(node, text)
                copied = text
                self._write(node, "", there.version)

        compare_and_swap(f"Lease {self._namespace}/{MARKS}", once, self._pause)
        self._moved.add(node)

    def answer(self, node: str, text: str) -> bool:
        """Write the controller's answer over the record of this node; whether there is one here. Raises
        BackendError."""
        stands = False

        def once(_: bool) -> None:
            nonlocal stands
            there = self.read()
            stands = node in there.texts
            if stands:
                self._write(node, text, there.version)

        compare_and_swap(f"Lease {self._namespace}/{MARKS}", once, self._pause)
        return stands

    def forget(self, node: str, left: str) -> None:
        """Replace the record of a node that is gone by ``left``, "" for none."""
        body = {"metadata": {"annotations": marked_with(node, left)}}
        self._api.patch(ResourceKind.LEASE, MARKS, body, namespace=self._namespace)

    def _write(self, node: str, text: str, version: str) -> None:
        body = {"metadata": {"resourceVersion": version, "annotations": marked_with(node, text)}}
        self._api.patch(ResourceKind.LEASE, MARKS, body, namespace=self._namespace)


def marked_with(node: str, text: str) -> dict[str, str | None]:
    """The annotations that write this record of the node, or remove it for "". Raises BackendRefused for a text that is
    not one short line."""
    if not text.isprintable() or len(text) > _MARK_CHARACTERS:
        expected = f"one line of at most {_MARK_CHARACTERS} characters"
        raise BackendRefused(f"handoff record of {node} not written: the text is {text[:200]!r}, expected {expected}")
    value = json.dumps({"node": node, "text": text}, ensure_ascii=False) if text else None
    return {key_of(node, MARK): value}


def marks_in(notes: Mapping[str, str]) -> dict[str, str]:
    """Node to record, by the annotation's key, without odd ones: a record is evidence, never permission."""
    return {node: text for node, text in _marks(notes).items() if text is not None}


def odd_marks(notes: Mapping[str, str]) -> frozenset[str]:
    """The nodes whose annotation is no record, or names another node."""
    return frozenset(node for node, text in _marks(notes).items() if text is None)


class _Marked(msgspec.Struct, frozen=True):
    node: str
    text: str


_READS_MARKED = msgspec.json.Decoder(_Marked)  # made by one thread, see ``node``


def _marks(notes: Mapping[str, str]) -> dict[str, str | None]:
    named = {key.removeprefix(MARK): value for key, value in notes.items() if key.startswith(MARK)}
    return {node: _mark(node, value) for node, value in named.items()}


def _mark(node: str, value: str) -> str | None:
    """The text of this node's record, or None for an odd one."""
    try:
        record = _READS_MARKED.decode(value)
    except NOT_JSON:
        return None
    return record.text if record.node == node else None
