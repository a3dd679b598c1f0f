"""One simulated node that is well until something happens to it, and all checks looking at it, look after look.

The file tree is constructed (``healthd.sim.tree``), the GPUs are the simulated NVML library behind the real worker, the
kernel log is read by the real reader from a file, and what the checks say is folded and judged as the daemon does it.
Time passes only when it is told to. What it must not do: judge. ``test_matrix`` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from healthd.agent.agent import kernel_needles
from healthd.checklib.tables import InstanceProfile, instance_types
from healthd.checklib.xids import xid_number, xid_row
from healthd.config.schema.config import CheckConfig
from healthd.core.check import Check, discover
from healthd.core.errors import SourceBusy
from healthd.core.model import Diagnosis, Outcome, Result, Status
from healthd.core.node import KernelRecord, Node, Nvml, ProbeState
from healthd.judge.diagnose import diagnose
from healthd.judge.history import History, begin_boot, counted, observe
from healthd.observe.runner import run_check
from healthd.sim import nvml_state, tree
from healthd.sim.nvml import write_state
from healthd.sources.kmsg import read_all
from healthd.sources.mounts import parse_mountinfo
from healthd.sources.nvml import NvmlSource
from healthd.sources.refusals import KEPT_S
from healthd.sources.trees import FileTree
from healthd.testing import FakeNode, FakeNvml
from tests.faults.overlay import Built, Overlay
from tests.support.healthy_node import CLOCK, QUICK, ROOM, Tools, answered, domains_of, nvml_lines

CHECKS: Mapping[str, Check] = discover()
LOOKING: Mapping[str, Check] = {name: check for name, check in CHECKS.items() if check.on != "active"}
START = datetime(2026, 1, 2, tzinfo=UTC)
_BOOTED = datetime.fromtimestamp(tree.BOOT_TIME_S, UTC)
_NVML_PAUSE_S = 300.0
_ANSWERS_IN_S = 60.0
"""How long a worker that answers may take, on a machine that is busy with others."""


class Seen(Struct, kw_only=True):
    """What the node came to: open faults and diagnoses with GPUs by their index, and each check's last status."""

    faults: frozenset[str]
    diagnoses: tuple[str, ...]
    status: Mapping[str, Status]
    reasons: Mapping[str, str]

    @property
    def unknown(self) -> frozenset[str]:
        """The checks that could not tell."""
        return frozenset(name for name, status in self.status.items() if status is Status.UNKNOWN)


class Workshop:
    """What many nodes share: the built trees and the healthy look at each, and the one worker of the simulated NVML.

    ``library``: the path of a shared object that reads ``state``; None for the simulation in Python, which does too.
    """

    def __init__(self, folder: Path, *, state: Path, library: Path | None = None) -> None:
        self.folder, self.state = folder, state
        self._library = str(library or state)
        self._sources: list[NvmlSource] = []
        self._now_s = 0.0
        self._written: Mapping[str, str] = {}
        self._well: dict[str, Rig] = {}
        self.looked: dict[tuple[str, datetime, str], Outcome] = {}
        """What checks said of a node that is as it was built, by its type, the time and the check, which is a function
        of the node."""
        self.nvml = self.source(clock=lambda: self._now_s)

    def node(self, instance_type: str = "p5.48xlarge") -> Rig:
        """A node of this type that is well, and was looked at once. The worker of NVML is the one that the node before
        had: so much later that what it refused there no longer counts, and asked once, so that it knows these GPUs."""
        if instance_type not in self._well:
            self._well[instance_type] = Rig(self, instance_type, root=Path(mkdtemp(dir=self.folder)))
            self._well[instance_type].look()
        self._now_s += 2 * KEPT_S
        node = self._well[instance_type].copy()
        self.write(node.nvml)
        self.nvml.ask()
        return node

    def source(self, **settings: Any) -> NvmlSource:
        """Another worker of the simulated NVML, for a node that will not give its back."""
        self._sources.append(NvmlSource(library=self._library, **{"deadline_s": _ANSWERS_IN_S, **settings}))
        return self._sources[-1]

    def write(self, lines: Mapping[str, str]) -> None:
        """What the simulated NVML answers from now on."""
        if lines != self._written:
            write_state(self.state, lines)
            self._written = dict(lines)

    def close(self) -> None:
        """End the workers."""
        for source in self._sources:
            source.close()


class Rig:
    """One node. Whatever a fault changes is changed here, and a look is a look of every check."""

    def __init__(self, shop: Workshop, instance_type: str, *, root: Path) -> None:
        profile = instance_types()[instance_type]
        tree.build(root, instance_type)
        self._trees = {name: Built(FileTree(root / name)) for name in ("sys", "proc", "dev")}
        self.shop, self.profile, self.root, self.now = shop, profile, root, START
        self.nvml, self.history = nvml_lines(profile), begin_boot(History(), tree.BOOT_ID)[0]
        self.settings: dict[str, Any] = {}
        self.outcomes: dict[str, Outcome] = {}
        self._records: list[tuple[datetime, str]] = []
        self._sequence, self._paused_until = 0, START
        self.silent_efa = frozenset[str]()
        self.real: dict[str, Node] = {}
        self.results: dict[str, Result] = {}
        self.called: dict[str, str] = {}
        self.records: tuple[KernelRecord, ...] = ()
        self.only_says = False
        """Whether nothing happens to the node but lines in its kernel log: only the checks of the log look anew."""
        self.cleanup = ExitStack()
        self.tools = Tools(profile)
        self._efa = {
            f"bus/pci/devices/{address}/infiniband/{device}/hw_counters/keep_alive_rcvd": device
            for address, device in zip(tree.layout_of(profile).efa, domains_of(profile), strict=True)
        }
        self.node = self._node(profile)

    def copy(self) -> Rig:
        """The same node again, with its own changes to come."""
        other = object.__new__(Rig)
        other.__dict__.update(self.__dict__)
        other.nvml, other.settings, other.outcomes = dict(self.nvml), dict(self.settings), dict(self.outcomes)
        other._records, other.tools = [], Tools(self.profile)
        other.real, other.results, other.called, other.cleanup = {}, {}, {}, ExitStack()
        other.node = other._node(self.profile)
        other.now += timedelta(seconds=60)
        return other

    def _node(self, profile: InstanceProfile) -> FakeNode:
        sys, proc, dev = (Overlay(self._trees[name]) for name in ("sys", "proc", "dev"))
        return FakeNode(
            boot=tree.BOOT_ID,
            instance_type=profile.type,
            sys=sys,
            proc=proc,
            dev=dev,
            nvml=self.shop.nvml,
            mount_table=parse_mountinfo(proc.read("self/mountinfo")),
            spaces={"/": ROOM, "/fsx": ROOM},
            file_probes={"/fsx": QUICK},
            kernel_clock=CLOCK,
            metadata_items={},
            commands=self.tools,
        )

    # -- what happens to it -------------------------------------------------------------------------------------------

    def gpu(self, index: int, **lines: str) -> None:
        """Lines of one GPU's state: ``gpu(2, nvmlDeviceGetRemappedRows="0 1 1 0")``."""
        self.only_says = False
        self.nvml.update({f"gpu{index}.{key}": value for key, value in lines.items()})

    def state(self, *lines: str) -> None:
        """Lines of the whole state, as they stand in its file: ``gpu2.field.230 = 1``."""
        self.only_says = False
        for line in lines:
            key, _, value = line.partition(" = ")
            self.nvml[key] = value

    def put(self, path: str, text: Any) -> None:
        """A file with this text: ``sys/fs/lustre/health_check``. Text may be a Link or an error."""
        self.only_says = False
        name, _, below = path.partition("/")
        getattr(self.node, name).put(below, text)

    def take(self, *paths: str) -> None:
        """Files or folders that are gone."""
        self.only_says = False
        for path in paths:
            name, _, below = path.partition("/")
            getattr(self.node, name).take(below)

    def mounted(self, line: str = "", *, without: str = "") -> None:
        """A mount more, in the form of mountinfo, and all of a point fewer."""
        self.only_says = False
        table = [mount for mount in self.node.mount_table or () if mount.point != without]  # type: ignore[union-attr]
        self.node.mount_table = (*table, *(parse_mountinfo(f"{line}\n") if line else ()))

    def says(self, *lines: str, after_s: float = 0.0) -> None:
        """Records of the kernel itself, one a second."""
        for number, line in enumerate(lines):
            self._records.append((self.now + timedelta(seconds=after_s + number), line))

    def answers(self, argv: tuple[str, ...], stdout: str, *, code: int = 0, stderr: str = "") -> None:
        """What a command answers from now on."""
        self.only_says = False
        self.tools[argv] = answered(argv, stdout, code=code, stderr=stderr)

    def unit(self, name: str, **properties: str) -> None:
        """Properties of a systemd unit."""
        self.only_says = False
        self.tools.units[name] = properties

    def set(self, check: str, settings: Any) -> None:
        """The settings of a check."""
        self.settings[check] = settings

    def forget(self) -> None:
        """A daemon that sees this node for the first time."""
        self.history = begin_boot(History(), tree.BOOT_ID)[0]

    def own_library(self, **settings: Any) -> None:
        """A worker of its own, which may hang or crash; it waits in real time, and stalls in simulated time."""
        self.only_says = False
        source = self.shop.source(clock=self._since_start_s, **settings)
        self.cleanup.callback(source.close)
        self.node.nvml = source

    def has_real(self, check: str, node: Node, called: Mapping[str, str]) -> None:
        """A check that looks at the machine that this runs on; ``called``: what its parts are called in the matrix."""
        self.only_says = False
        self.real[check] = node
        self.called.update(called)

    # -- looks --------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += timedelta(seconds=seconds)

    def look(self) -> None:
        """Every check looks: first those of the kernel log at what is new in it, then the others."""
        self.shop.write(self.nvml)
        self._keep_alive()
        records = self._read_kernel_log()
        in_order = sorted(LOOKING.values(), key=lambda check: check.on != "kernel")
        for check in in_order:
            self._run(check, records)

    def test(self, check: str) -> None:
        """An active check runs."""
        self._run(CHECKS[check], ())

    def _run(self, check: Check, records: tuple[KernelRecord, ...]) -> None:
        kernel = check.on == "kernel"
        outcome = self._seen_by(check, records if kernel else ())
        if check.name in self.results:
            outcome = replace(outcome, result=self.results[check.name])
        if not kernel:
            seen = tuple(replace(finding, time=self.now) for finding in outcome.result.findings)
            outcome = replace(outcome, result=replace(outcome.result, findings=seen))
        outcome = replace(outcome, at=self.now)
        self._pause(outcome.result)
        self.history, _ = observe(self.history, outcome, check.limits, self.now)
        self.outcomes[check.name] = counted(self.history, outcome)

    def _seen_by(self, check: Check, records: tuple[KernelRecord, ...]) -> Outcome:
        """What the check says of the node; of one that is as it was built, what it said of the one before."""
        is_known = self.only_says and check.on != "kernel" and check.name not in self.settings and not self._is_paused
        key = (self.profile.type, self.now, check.name)
        if is_known and key in self.shop.looked:
            return self.shop.looked[key]
        simulated = replace(self.node, kernel_records=records, nvml=self._nvml())
        outcome = run_check(check, self.real.get(check.name, simulated), self._settings_of(check))
        if is_known:
            self.shop.looked[key] = outcome
        return outcome

    @property
    def _is_paused(self) -> bool:
        return self._paused_until > self.now

    def _keep_alive(self) -> None:
        """Every EFA device that lives tells its driver so, all the time."""
        beats = str(int((self.now - START).total_seconds()))
        for path, device in self._efa.items():
            if device not in self.silent_efa and self.node.sys.exists(path):
                self.node.sys.put(path, beats)

    def _settings_of(self, check: Check) -> Any:
        return self.settings.get(check.name) or check.settings()

    def _nvml(self) -> Nvml:
        left_s = (self._paused_until - self.now).total_seconds()
        if left_s <= 0:
            return self.node.nvml
        state = ProbeState(paused_s=left_s, reason="a fault after which NVML may hang")
        return FakeNvml(error=SourceBusy("NVML is paused"), probe=state)

    def _pause(self, result: Result) -> None:
        """As ``checkup`` does after an XID that may make NVML hang; the simulated clock says for how long."""
        for finding in result.findings:
            number = xid_number(finding.code)
            if number is not None and xid_row(number).pauses_nvml:
                self._paused_until = self.now + timedelta(seconds=_NVML_PAUSE_S)

    def _read_kernel_log(self) -> tuple[KernelRecord, ...]:
        """The new records, written in the kernel's own form and read by the real reader, through the real needles."""
        if not self._records:
            came, self.records = self.records, ()
            return came
        log = self.root / "kmsg"
        log.write_bytes(b"".join(self._raw(at, text) for at, text in self._records))
        self._records = []
        settings = {check.name: CheckConfig(settings=self._settings_of(check)) for check in LOOKING.values()}
        return read_all(
            str(log), boot_id=tree.BOOT_ID, boot_time=_BOOTED, needles=kernel_needles(LOOKING, settings)
        ).records

    def _raw(self, at: datetime, text: str) -> bytes:
        self._sequence += 1
        since_us = int((at - _BOOTED).total_seconds() * 1e6)
        return f"4,{self._sequence},{since_us},-;".encode() + _escaped(text) + b"\n"

    def _since_start_s(self) -> float:
        return (self.now - START).total_seconds()

    # -- what it came to ----------------------------------------------------------------------------------------------

    def seen(self) -> Seen:
        """Open faults, diagnoses and states, in short words."""
        return Seen(
            faults=frozenset(f"{code}@{self._short(where)}" for where, code in self.history.faults),
            diagnoses=tuple(self._told(diagnosis) for diagnosis in diagnose(self.history)),
            status={name: outcome.result.status for name, outcome in self.outcomes.items()},
            reasons={name: outcome.result.reason for name, outcome in self.outcomes.items()},
        )

    def _told(self, diagnosis: Diagnosis) -> str:
        where = self._short(str(diagnosis.component))
        return f"{diagnosis.code}@{where} {diagnosis.severity} {diagnosis.remedy}"

    def _short(self, component: str) -> str:
        for index in range(self.profile.gpus):
            component = component.replace(nvml_state.uuid(index), str(index))
        for name, short in self.called.items():
            component = component.replace(name, short)
        return component


def _escaped(text: str) -> bytes:
    """As the kernel writes a record: what is not printable ASCII, and the backslash, as ``\\xNN``."""
    return b"".join(
        bytes([byte]) if 0x20 <= byte < 0x7F and byte != 0x5C else b"\\x%02x" % byte for byte in text.encode()
    )
