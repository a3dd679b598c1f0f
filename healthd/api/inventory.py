"""The inventory of a node: its machine, its GPUs by UUID and board serial number, its open faults but for the
symptoms of others. For the fleet's ledger.

UUIDs and serial numbers are read through the NVML worker, rarely, and kept for the boot. The JSON is
``healthd.inventory/v1``; fields are added to it, never renamed or removed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from healthd.agent.agent import Agent
from healthd.agent.wiring import versions_of
from healthd.core.errors import SourceError
from healthd.core.node import GpuAnswer
from healthd.judge.diagnose import roots_of

INVENTORY_SCHEMA = "healthd.inventory/v1"
_SERIAL = "nvmlDeviceGetSerial"
_AGAIN_S = 10.0
"""The least time between two questions to NVML: any user may request inventories, and checks wait meanwhile."""


class NodeInventory:
    """The inventory of one node, as often as it is asked for. ``clock`` returns monotonic seconds."""

    def __init__(self, agent: Agent, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._agent, self._versions, self._clock = agent, versions_of(agent.machine), clock
        self._asking, self._again_s = threading.Lock(), 0.0
        self._known: dict[str, dict[str, dict[str, str]]] = {}

    def text(self) -> str:
        """One JSON object. It runs no check."""
        agent = self._agent
        report, machine, versions = agent.checkup.report(look=False), agent.machine, self._versions()
        return json.dumps(
            {
                "schema": INVENTORY_SCHEMA,
                "node": machine.name,
                "generated_at": report.generated_at.isoformat(),
                "boot_id": report.boot_id,
                "instance": machine.identity.instance_id,
                "instance_type": report.instance_type,
                "image": versions.image,
                "driver": versions.driver,
                "kernel": versions.kernel,
                "gpus": self._gpus(report.boot_id),
                "faults": [
                    {
                        "code": root.code,
                        "component": str(each.component),
                        "severity": root.severity.value,
                        "since": root.since.isoformat(),
                    }
                    for each in report.diagnoses
                    for root in roots_of(each)
                ],
            }
        )  # fmt: skip

    def _gpus(self, boot_id: str) -> list[dict[str, Any]]:
        """Every GPU that NVML listed in this boot. One that fell off the bus, and a driver that does not answer now,
        take none away: the fault that is reported is about it."""
        with self._asking:  # a request that comes meanwhile has the same answer
            known = self._known.setdefault(boot_id, {})
            self._known = {boot_id: known}
            for answer in self._answers():
                if answer.uuid:
                    serial = answer.values.get(_SERIAL)
                    before = known.get(answer.uuid, {}).get("serial", "")
                    reported = serial if isinstance(serial, str) else before
                    known[answer.uuid] = {"uuid": answer.uuid, "index": str(answer.index), "serial": reported}
            return list(known.values())

    def _answers(self) -> tuple[GpuAnswer, ...]:
        if self._clock() < self._again_s:
            return ()
        try:
            return self._agent.machine.nvml.ask(_SERIAL)
        except SourceError:
            return ()  # no NVIDIA driver here, or it does not answer: the inventory has what was known before
        finally:
            self._again_s = self._clock() + _AGAIN_S
