"""The probes of ``healthd doctor`` on the machine: each uses healthd's own code and makes results of its answer.
``healthd.setup.remote_probes`` probes the cluster and AWS.

A probe may hang, so it runs in a fork with a deadline. It changes nothing, but for a nameless file in healthd's own
folders.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from msgspec import Struct

from healthd.api.client import ask
from healthd.api.wire import Request
from healthd.checklib.pci import efa_functions, pci_gpus
from healthd.checklib.tables import instance_profile
from healthd.config.schema.config import Config
from healthd.core.check import discover
from healthd.core.errors import NoDaemon, SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Result, Status
from healthd.observe.runner import run_check
from healthd.setup.doctor import DoctorResult, DoctorStatus
from healthd.setup.durable_folder import not_lasting
from healthd.setup.survey import network_mounts
from healthd.sources.identity import boot_id, boot_time
from healthd.sources.kmsg import read_all
from healthd.sources.machine import Machine, open_machine

DoctorProbe = Callable[[], list[DoctorResult]]
Look = Callable[[Config, Machine], DoctorResult | Iterable[DoctorResult]]

# The needs of these checks are those of healthd or of jobs; their own messages name the fix.
_BY_CHECKS: Mapping[str, bool] = {
    "host.clock": False,
    "stack.versions": False,
    "gpu.gdrcopy": True,
    "efa.provider": True,
}
"""Check to whether healthd works without what the check needs."""

_LOG = "read the log of the daemon, `journalctl -u healthd`, or that of this pod"
_NO_RECORD = (b"\0no record holds this",)  # the log is opened and read, and no record is kept


class Tool(Struct, frozen=True, kw_only=True):
    """A program that healthd calls. ``argv`` prints its version, which ``version`` matches; ``needed`` gives the reason
    why a machine does not need it, or ""."""

    name: str
    argv: tuple[str, ...]
    version: str
    needed: Callable[[Machine], str]
    use: str
    fix: str
    optional: bool = False


def machine_probes(config: Config, socket: str) -> Mapping[str, DoctorProbe]:
    """The probes of this machine by name, which is the subject of a result without an answer."""
    on_machine = partial(with_machine, config)
    return {
        "user": lambda: [_user()],
        "kernel log": on_machine(_kernel_log),
        "socket": lambda: [_folder("socket", str(Path(config.daemon.socket).parent), "[daemon] socket")],
        "state": on_machine(_state),
        "daemon": lambda: [_daemon(socket)],
        "instance": on_machine(_instance),
        "metadata": on_machine(_metadata),
        "NVML": on_machine(_nvml),
        **{tool.name: on_machine(partial(_tool, tool)) for tool in TOOLS},
        "NCCL": on_machine(_nccl),
        **{name: on_machine(partial(_by_check, name)) for name in _BY_CHECKS},
    }


def with_machine(config: Config, look: Look) -> DoctorProbe:
    """A probe of the machine that the configuration describes; it closes the machine at its end."""

    def opened() -> list[DoctorResult]:
        with closing(open_machine(config)) as machine:
            found = look(config, machine)
            return [found] if isinstance(found, DoctorResult) else list(found)

    return opened


# ---------------------------------------------------------------------------------------------------------------------
# healthd's own


def _user() -> DoctorResult:
    if os.geteuid() == 0:
        return DoctorResult.ok("user", "root")
    why = f"this is user {os.geteuid()}, the daemon runs as root: permissions below are those of this user"
    return DoctorResult.not_reported("user", why, "sudo healthd doctor")


def _kernel_log(config: Config, machine: Machine) -> DoctorResult:
    source, about = config.sources.kmsg, "kernel log"
    fix = 'run as root; in a container mount /dev/kmsg, or give CAP_SYSLOG and set [sources] kmsg = "syslog"'
    if source != "syslog" and not os.path.exists(source):
        return DoctorResult.missing(about, f"{source} does not exist", fix)
    if source != "syslog" and not os.access(source, os.R_OK):
        return DoctorResult.missing(about, f"user {os.geteuid()} may not read {source}", fix)
    try:
        read = read_all(source, boot_id=boot_id(machine.proc), boot_time=boot_time(machine.proc), needles=_NO_RECORD)
    except (SourceMissing, SourceUnreadable) as error:  # the device or system call exists, and refuses
        return DoctorResult.missing(about, str(error), fix)
    why = f"{source} is readable" if read.caught_up else f"{source} is readable, and grows faster than healthd reads"
    return DoctorResult.ok(about, why)


def _state(config: Config, machine: Machine) -> DoctorResult:
    path = config.daemon.state_dir
    line = _folder("state", path, "[daemon] state_dir")
    is_repaired = config.remediation.mode.repairs
    if not is_repaired or line.status is not DoctorStatus.OK:
        return line
    if not (why := not_lasting(os.path.realpath(path), machine.mounts(), machine.sys)):
        return line
    lost = "in mode repair a daemon that loses its faults keeps nodes out, because it cannot verify them"
    fix = "set [daemon] state_dir to a folder on a disk that outlives the boot, such as the root volume on EBS"
    return DoctorResult.missing("state", f"{why}: {lost}", fix)


def _folder(about: str, path: str, setting: str) -> DoctorResult:
    """Whether the daemon can create files in the folder, or the folder itself."""
    fix = f"run as root, or set {setting} to a folder that healthd may write to"
    there = Path(path)
    if not there.is_dir():
        above = next(parent for parent in there.parents if parent.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return DoctorResult.ok(about, f"{path} does not exist yet; {above} is writable")
        return DoctorResult.missing(about, f"{path} does not exist, and {above} is not writable", fix)
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"healthd doctor\n")
    except OSError as error:
        return DoctorResult.missing(about, f"{path} is not writable: {error.strerror}", fix)
    return DoctorResult.ok(about, f"{path} is writable")


def _daemon(socket: str) -> DoctorResult:
    try:
        answered = ask(socket, Request(arguments=("status", "--json")), lambda _: None)
    except NoDaemon as error:
        return DoctorResult.not_reported("daemon", str(error), _LOG)
    if answered is None:
        start = "see the log of this pod" if os.environ.get("KUBERNETES_SERVICE_HOST") else "systemctl start healthd"
        fix = f"{start}, or `healthd run`; name a moved socket with --socket or HEALTHD_SOCKET"
        return DoctorResult.missing("daemon", f"no daemon answers at {socket}", fix)
    if answered.code:
        return DoctorResult.not_reported("daemon", answered.err.strip(), _LOG)
    status = json.loads(answered.out)
    why = f"answers at {socket}: {status['verdict']}, in mode {status['mode']}"
    return DoctorResult.ok("daemon", why)


# ---------------------------------------------------------------------------------------------------------------------
# the machine


def _instance(_: Config, machine: Machine) -> DoctorResult:
    about, found = "instance", machine.identity
    if not found.instance_type:
        why = found.problem or "neither DMI nor the instance metadata service has an EC2 instance type"
        fix = 'on EC2 set [node] instance_type, such as "p5.48xlarge"; elsewhere healthd learns the devices'
        return DoctorResult.not_reported(about, why, fix, optional=True)
    profile = instance_profile(found.instance_type)
    if profile is None:
        why = f"{found.instance_type} is not in healthd's table of GPU instance types; healthd learns its devices"
        return DoctorResult.ok(about, why)
    has = f"{profile.gpus} {profile.gpu_model}, up to {profile.efa_max} EFA devices"
    return DoctorResult.ok(about, f"{found.instance_type}: {has}")


def _metadata(_: Config, machine: Machine) -> DoctorResult:
    about = "metadata"
    try:
        found = machine.imds.read("instance-id")
    except SourceMissing as error:
        return DoctorResult.unneeded(about, str(error))
    except SourceError as error:
        fix = "allow this process to reach the instance metadata service: hop limit 2 in containers, no firewall"
        return DoctorResult.not_reported(about, str(error), fix)
    return DoctorResult.ok(about, f"IMDS answers: {found}")


def _nvml(_: Config, machine: Machine) -> DoctorResult:
    if not (gpus := pci_gpus(machine)):
        return DoctorResult.unneeded("NVML", "no NVIDIA GPU on the PCI bus")
    try:
        answer = machine.nvml.system()
    except SourceMissing as error:
        fix = "install the driver's libraries (libnvidia-ml.so.1), or set [sources] nvml_library"
        return DoctorResult.missing("NVML", str(error), fix)
    except SourceUnreadable as error:
        fix = "load the driver, `modprobe nvidia`, and read what it logs: `journalctl -k --grep NVRM`"
        return DoctorResult.not_reported("NVML", str(error), fix)
    why = f"driver {answer['driver_version']} answers for {answer['gpu_count']} of {len(gpus)} GPUs on the bus"
    return DoctorResult.ok("NVML", why)


# ---------------------------------------------------------------------------------------------------------------------
# programs that healthd calls


def _with_gpus(machine: Machine) -> str:
    return "" if pci_gpus(machine) else "no NVIDIA GPU on the PCI bus"


def _with_efa(machine: Machine) -> str:
    return "" if efa_functions(machine) else "no EFA device on the PCI bus"


def _with_lustre(machine: Machine) -> str:
    lustre = any(mount.fstype == "lustre" for mount in network_mounts(machine.mounts()))
    return "" if lustre else "no Lustre mount"


TOOLS = (
    Tool(
        name="nvidia-smi",
        argv=("nvidia-smi", "--help"),
        version=r"-- v(\d\S*)",
        needed=_with_gpus,
        use="healthd cannot reset a GPU without it",
        fix="install the driver's own utilities; PATH, /usr/bin and the like are searched",
    ),
    Tool(
        name="nvidia-bug-report.sh",
        argv=("nvidia-bug-report.sh", "--help"),
        version="",
        needed=_with_gpus,
        use="the evidence of a remediation lacks the report that NVIDIA's support asks for first",
        fix="install it with the driver, or change [evidence] commands",
        optional=True,
    ),
    Tool(
        name="fi_info",
        argv=("/opt/amazon/efa/bin/fi_info", "--version"),
        version=r"libfabric: (\d\S*)",
        needed=_with_efa,
        use="healthd cannot check whether libfabric sees every EFA device",
        fix="run AWS's EFA installer; not needed where only containers have libfabric",
        optional=True,
    ),
    Tool(
        name="lfs",
        argv=("lfs", "--version"),
        version=r"(?<!\d)(\d+\.\d\S*)",
        needed=_with_lustre,
        use="healthd works without it, but an operator needs it to examine a Lustre fault",
        fix="install the Lustre client's utilities (lustre-client-utils)",
        optional=True,
    ),
)


def _tool(tool: Tool, _: Config, machine: Machine) -> DoctorResult:
    if unneeded := tool.needed(machine):
        return DoctorResult.unneeded(tool.name, unneeded)
    try:
        answer = machine.command(*tool.argv, timeout_s=8.0)
    except SourceMissing as error:
        why = f"{_not_found(error)}: {tool.use}"
        return DoctorResult.missing(tool.name, why, tool.fix, optional=tool.optional)
    except (SourceTimeout, SourceUnreadable) as error:
        fix = "find what it waits for in the kernel log: dmesg"
        return DoctorResult.not_reported(tool.name, str(error), fix, optional=tool.optional)
    found = re.search(tool.version, answer.stdout + answer.stderr) if tool.version else None
    return DoctorResult.ok(tool.name, found[1] if found else "installed")


def _not_found(error: SourceMissing) -> str:
    """The message without the list of searched folders."""
    return str(error).partition("; ")[0]


def _nccl(_: Config, machine: Machine) -> DoctorResult:
    if unneeded := _with_gpus(machine):
        return DoctorResult.unneeded("NCCL", unneeded)
    if importlib.util.find_spec("nccl") is not None:
        return DoctorResult.ok("NCCL", "nccl4py is installed beside healthd")
    try:
        return DoctorResult.ok("NCCL", f"active tests use {machine.active.perf_tool()}")
    except SourceMissing as error:
        why = f"no active test of NVLink or the network can run: nccl4py is not installed; {_not_found(error)}"
        fix = "install the package healthd-nccl, or build nccl-tests and set [sources] all_reduce_perf"
        return DoctorResult.missing("NCCL", why, fix, optional=True)


# ---------------------------------------------------------------------------------------------------------------------
# results of checks


def _by_check(name: str, config: Config, machine: Machine) -> Iterator[DoctorResult]:
    check, own, optional = discover()[name], config.checks[name], _BY_CHECKS[name]
    if not own.enabled:
        yield DoctorResult.unneeded(name, "the check is disabled")
        return
    yield from _of_result(name, run_check(check, machine, own.settings).result, optional)


def _of_result(name: str, result: Result, optional: bool) -> Iterator[DoctorResult]:
    for finding in result.findings:
        fix = f"`healthd explain {finding.code}`"
        yield DoctorResult.missing(name, finding.message, fix, optional=optional)
    if result.status is Status.NOT_APPLICABLE:
        yield DoctorResult.unneeded(name, result.reason)
    elif not result.is_whole:
        fix = result.do or "make readable or install what this line names"
        yield DoctorResult.not_reported(name, result.reason or "; ".join(result.undecided), fix, optional=optional)
    elif not result.findings:
        yield DoctorResult.ok(name, result.reason or discover()[name].title)
