"""The inventory of a node: its machine, its GPUs by UUID and board serial number, its open faults. For the fleet's
ledger.

Serial numbers are read through the NVML worker once in a boot. A driver that does not answer leaves them "": the UUIDs
are known without it. The JSON is ``healthd.inventory/v1``; fields are added to it, never renamed or removed.
"""

from __future__ import annotations

import json
from typing import Any

from healthd.agent.agent import Agent
from healthd.agent.wiring import versions_of
from healthd.core.errors import SourceError

INVENTORY_SCHEMA = "healthd.inventory/v1"
_SERIAL = "nvmlDeviceGetSerial"


class NodeInventory:
    """The inventory of one node, as often as it is asked for."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._versions = agent, versions_of(agent.machine)
        self._serials: dict[str, dict[str, str]] = {}

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
                        "code": each.code,
                        "component": str(each.component),
                        "severity": each.severity.value,
                        "since": each.since.isoformat(),
                    }
                    for each in report.diagnoses
                ],
            }
        )  # fmt: skip

    def _gpus(self, boot_id: str) -> list[dict[str, Any]]:
        """The GPUs of this boot: as NVML lists them now, else as it listed them before."""
        known = self._serials.setdefault(boot_id, {})
        self._serials = {boot_id: known}
        names: dict[str, dict[str, Any]] = {}
        for part in {str(each): each for each in self._agent.monitor.history.names.values()}.values():
            if part.kind == "gpu" and part.id.startswith("GPU-"):
                index = next((alias for alias in part.aliases if alias.isdigit()), "")
                names[part.id] = {"uuid": part.id, "index": index, "serial": known.get(part.id, "")}
        if names and all(each["serial"] for each in names.values()):
            return list(names.values())
        for answer in self._answers():
            serial = answer.values.get(_SERIAL)
            if answer.uuid:
                if isinstance(serial, str):
                    known[answer.uuid] = serial
                row = {"uuid": answer.uuid, "index": str(answer.index), "serial": known.get(answer.uuid, "")}
                names[answer.uuid] = row
        return list(names.values())

    def _answers(self) -> tuple[Any, ...]:
        try:
            return self._agent.machine.nvml.ask(_SERIAL)
        except SourceError:
            return ()  # no NVIDIA driver here, or it does not answer: the inventory has what was known before
