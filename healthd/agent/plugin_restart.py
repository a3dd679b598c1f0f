"""After a GPU reset, asks the cluster once for the restart of the device plugin, however long that takes.

The request is kept in the store between the reset and the API server's answer. A kill between the two repeats the
request under the same name, which the controller knows.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from healthd.agent.wiring import as_kubernetes
from healthd.config.schema.config import Config
from healthd.core.errors import BackendError, StoreError
from healthd.remediation.ports import Orchestrator

FACT = "device_plugin_restart"
"""Under which key the store keeps a request that was not made yet."""


class Facts(Protocol):
    """The part of the store that this needs."""

    def fact(self, key: str) -> str:
        """The kept value, or ""."""

    def keep(self, key: str, value: str) -> None:
        """Keep it. Raises StoreError."""


class PluginRestart:
    """The request of one node. ``ask`` leaves it with the cluster, by the reset's name and time; raises BackendError.

    ``wanted`` and ``due`` may be called by two threads.
    """

    def __init__(
        self,
        facts: Facts,
        ask: Callable[[str, datetime], None],
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        new_id: Callable[[], str] = lambda: os.urandom(4).hex(),
    ) -> None:
        self._facts, self._ask, self._clock, self._new_id = facts, ask, clock, new_id
        self._pending, self._last_message, self._lock = facts.fact(FACT), "", threading.Lock()

    def wanted(self) -> None:
        """The GPUs were reset. The request survives a disk that takes no writes, unless this process ends."""
        with self._lock:
            self._last_message = ""
            self._set(f"{self._new_id()} {int(self._clock().timestamp())}")

    def due(self) -> str:
        """Ask, if that is still to be done; the result as a sentence, once, or ""."""
        if not (pending := self._pending):
            return ""
        reset, _, at = pending.partition(" ")
        try:
            self._ask(reset, datetime.fromtimestamp(int(at), UTC))
        except BackendError as error:
            what = f"the device plugin's restart could not be asked for after reset {reset}"
            return self._new(f"{what}, tried again: {error}")
        with self._lock:
            if self._pending == pending:  # else the GPUs were reset again meanwhile
                self._set("")
        return self._new(f"asked healthd controller for the device plugin's restart after reset {reset}")

    def _set(self, pending: str) -> None:
        self._pending = pending
        with contextlib.suppress(StoreError):  # a request that stays there is made again, and the controller knows it
            self._facts.keep(FACT, pending)

    def _new(self, message: str) -> str:
        known, self._last_message = self._last_message, message
        return "" if message == known else message


def open_plugin_restart(config: Config, orchestrator: Orchestrator, facts: Facts) -> PluginRestart | None:
    """Where the cluster is Kubernetes and the plugin's pods are named; else None."""
    kubernetes = as_kubernetes(orchestrator)
    if kubernetes is None or not config.orchestrator.kubernetes.device_plugin:
        return None
    return PluginRestart(facts, kubernetes.ask_plugin_restart)
