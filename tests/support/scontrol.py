"""A handwritten scontrol of one node, for what provisioners ask of Slurm: records as Slurm 22.05.8 prints them."""

from __future__ import annotations

from healthd.core.errors import BackendUnknown


class ScriptedScontrol:
    """Answers ``show node`` and ``show reservation``, and keeps every other command in ``updates``."""

    def __init__(
        self,
        node: str,
        *,
        state: str = "IDLE",
        reason: str = "",
        address: str = "10.0.0.7",
        features: str = "(null)",
        fenced: bool = False,
    ) -> None:
        self.node, self.state, self.reason, self.address = node, state, reason, address
        self.features, self.fenced = features, fenced
        self.updates: list[tuple[str, ...]] = []
        self.silent = False

    def __call__(self, *args: str) -> str:
        if self.silent:
            raise BackendUnknown("Slurm did not answer: as the test wants it")
        if args == ("-o", "show", "node", self.node):
            return self._record()
        if args == ("-o", "show", "reservation"):
            return self._reservations()
        self.updates.append(args)
        self._apply(args)
        return ""

    def _apply(self, args: tuple[str, ...]) -> None:
        settings = dict(word.split("=", 1) for word in args if "=" in word)
        self.reason = settings.get("reason", self.reason)
        if args[0] == "reboot":
            self.state = "IDLE+DRAIN+REBOOT_REQUESTED"
        elif "state" in settings:
            self.state = f"IDLE+{settings['state'].upper()}"

    def _record(self) -> str:
        reason = f" Reason={self.reason} [root@2026-11-21T10:00:00]" if self.reason else ""
        return (
            f"NodeName={self.node} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUTot=4 CPULoad=0.00"
            f" AvailableFeatures={self.features} ActiveFeatures={self.features} Gres=(null)"
            f" NodeAddr={self.address} NodeHostName={self.node} Version=22.05.8"
            f" State={self.state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=main"
            f" ExtSensorsWatts=n/s{reason}\n"
        )

    def _reservations(self) -> str:
        if not self.fenced:
            return "No reservations in the system\n"
        return (
            "ReservationName=healthd-cluster-0 StartTime=2026-11-21T10:00:00 EndTime=2027-11-21T10:00:00"
            f" Duration=365-00:00:00 Nodes={self.node} NodeCnt=1 CoreCnt=4 Features=(null) PartitionName=main"
            " Flags=MAINT,IGNORE_JOBS,SPEC_NODES,STATIC TRES=cpu=4 Users=root State=ACTIVE MaxStartDelay=(null)\n"
        )
