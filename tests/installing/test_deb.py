"""The .deb on a booted, clean Debian, with systemd and Slurm: from installation to purge, as the pages tell people."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from healthd import __version__
from tests.installing.machine import Machine, booted, clean_root
from tests.installing.page import shown
from tests.live.slurm.slurm_conf import conf_text, hooks_we_ship
from tests.support.running import OFF_THE_BUS
from tests.unit.config.test_config_load import SERVICE, SERVICE_VALUES

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.process]

CONFIG = "/etc/healthd/config.toml"
# What a package manager, the system and Slurm keep for themselves. A name of ours is looked for everywhere.
NOT_OURS = re.compile(
    r"\./(var/(lib/(dpkg|apt|systemd|lab|munge|private)|cache|log)|etc/(machine-id|ld\.so\.cache)|root)(/|$)"
)
WITHOUT_OURS = re.compile(r"\./(var/(lib/dpkg|cache|log)|root|proc|sys)/")
ENVIRONMENT = "/etc/healthd/environment"
KMSG = "HEALTHD_SOURCES_KMSG=/root/kmsg\n"
NOT_YET = "no result|no answer yet"
DENIED = "Operation not permitted"
QUARANTINE = '[remediation]\nmode = "quarantine"\nsettle_s = 1\n[budget]\nmax_out = 1\nsettle_s = 1\n'


@pytest.fixture(scope="module")
def machine(own_debs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted Debian with Slurm, and both packages in /root; healthd is not installed."""
    with booted(clean_root(), tmp_path_factory.mktemp("machine")) as made:
        for number, deb in enumerate(own_debs, 1):
            made.must("mkdir", f"/root/{number}")
            made.copy(deb, f"/root/{number}/{deb.name}")
            made.must("ln", "-s", f"{number}/{deb.name}", f"/root/healthd_{number}.deb")
        yield made


def files(machine: Machine) -> set[str]:
    """Every path of the machine that a package could leave behind: new ones, and any that has our name."""
    disk = machine.must("find", ".", "-xdev").splitlines()
    named = machine.out("find", ".", "-name", "*healthd*").splitlines()
    return {path for path in disk if not NOT_OURS.match(path)} | {
        path for path in named if not WITHOUT_OURS.match(path)
    }


def test_a_node_from_installation_to_purge(machine: Machine) -> None:
    """Install, configure, start, look, hook into Slurm, drain for a fault, upgrade, remove, purge: on one node."""
    assert machine.run("sh", "-c", "command -v python3").returncode != 0, "it must do without"
    slurm_conf(machine, {})
    machine.must("systemctl", "restart", "munge", "slurmctld", "slurmd")
    machine.wait(lambda: "State=IDLE" in slurm_node(machine), 30, "the node to be idle")
    before = files(machine)

    installed(machine)
    configured(machine)
    started(machine)
    reloaded(machine)
    hooked(machine)
    drained(machine)
    overruled(machine)
    controlled(machine)
    upgraded(machine)
    unhooked(machine)
    removed(machine, before)


def installed(machine: Machine) -> None:
    """As the page says. Enabled, not started: nobody has said what this node is yet. Every file is as it was packed."""
    install, look = shown("debian")
    machine.must("sh", "-c", f"cd /root/1 && {install}")
    assert machine.out("healthd", "--version") == f"healthd {__version__}"
    assert machine.out("systemctl", "is-enabled", "healthd", "healthd-controller").split() == ["enabled", "disabled"]
    assert machine.out("systemctl", "is-active", "healthd") == "inactive"
    verified = machine.run("systemd-analyze", "verify", *UNITS)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    for unit, most in (("healthd", 70), ("healthd-controller", 30)):
        path = f"/lib/systemd/system/{unit}.service"
        machine.must("systemd-analyze", "security", "--offline=true", f"--threshold={most}", "--no-pager", path)
    looked = machine.run(*look.split())
    assert looked.returncode in (0, 1, 2), looked.stderr
    assert f"no daemon · healthd {__version__}" in looked.stdout
    machine.must("dpkg", "--verify", "healthd")


UNITS = [f"/lib/systemd/system/{name}" for name in ("healthd.service", "healthd-controller.service", "healthd.slice")]


def configured(machine: Machine) -> None:
    """`healthd init` finds Slurm and writes over nothing; of what `healthd doctor` misses the daemon is a part."""
    init, doctor = (line.split() for line in shown("configure"))
    machine.must(*init)
    written = machine.must("cat", CONFIG)
    assert re.search(r'^kind = "slurm"', written, re.MULTILINE), written
    again = machine.run(*init)
    assert again.returncode != 0
    assert "never overwritten" in again.stderr
    assert machine.out("cat", CONFIG) == written.strip()
    told = machine.run(*doctor)
    assert told.returncode == 1, told.stdout + told.stderr
    assert re.search(r"^missing +daemon: .*\n.*systemctl start healthd", told.stdout, re.MULTILINE), told.stdout
    assert re.search(r"^ok +slurmctld: ", told.stdout, re.MULTILINE), told.stdout


def started(machine: Machine) -> None:
    """READY is heard: systemd says active only then. The sandbox lets it read /dev/kmsg, and doctor misses nothing."""
    *first, last = shown("start")
    for line in first:
        machine.must(*line.split())
    status = machine.must(*last.split())
    assert " · slurm · observe · " in status
    asked = machine.run("healthd", "check", "kmsg.reader")
    assert asked.returncode == 0, asked.stdout
    machine.wait(lambda: not re.search(NOT_YET, machine.out("healthd", "check")), 60, "every check to have looked")
    verdict = json.loads(machine.out("healthd", "check", "--json"))
    assert {each["name"] for each in verdict["checks"]} >= {"host.clock", "host.filesystems", "kmsg.reader"}
    denied = [each for each in verdict["checks"] if DENIED in json.dumps(each)]
    assert denied == [], "the unit's sandbox keeps these from looking"
    assert machine.run("chronyc", "-v").returncode == 127, "with chronyd nothing above asks the kernel for its clock"
    told = machine.out("healthd", "doctor")
    missing = re.findall(r"^missing +([^:]+)", told, re.MULTILINE)
    assert set(missing) <= {"host.clock"}, told  # which is this machine's own
    unit = dict(line.split("=", 1) for line in machine.must("systemctl", "show", "healthd").splitlines())
    assert (unit["NoNewPrivileges"], unit["Slice"]) == ("yes", "healthd.slice")
    assert machine.out("stat", "-c", "%a", "/var/lib/healthd", "/run/healthd").split() == ["700", "755"]
    # From here on the kernel log is a file: the real one has what this machine goes through.
    machine.must("systemctl", "stop", "healthd")
    machine.must("rm", "-r", "/var/lib/healthd")
    machine.write(ENVIRONMENT, KMSG)
    machine.must("touch", "/root/kmsg")
    machine.must("systemctl", "start", "healthd")


def main_pid(machine: Machine) -> str:
    return machine.out("systemctl", "show", "--value", "--property=MainPID", "healthd")


def reloaded(machine: Machine) -> None:
    """A configuration that is wrong fails the reload and changes nothing; a right one is taken by the same process."""
    pid, first = main_pid(machine), machine.out("cat", CONFIG)
    machine.write(CONFIG, first + '\n[remediation]\nmode = "quarantin"\n')
    assert machine.run("systemctl", "reload", "healthd").returncode != 0
    assert " · observe · " in machine.must("healthd", "status")
    machine.write(CONFIG, merged(first))
    machine.must("healthd", "config", "validate")
    machine.must("systemctl", "reload", "healthd")
    machine.wait(lambda: " · quarantine · " in machine.out("healthd", "status"), 30, "the new mode")
    assert main_pid(machine) == pid
    assert machine.out("systemctl", "is-active", "healthd") == "active"


def merged(text: str) -> str:
    """A configuration with the test's own settings instead of what it says of these tables."""
    kept = re.sub(r"^\[(remediation|budget)\]\n(?:(?!\[).*\n?)*", "", text + "\n", flags=re.MULTILINE)
    return kept + QUARANTINE


def slurm_conf(machine: Machine, hooks: Mapping[str, str]) -> None:
    """A Slurm of this one node, as its distribution starts it."""
    scheduler = ",".join(filter(None, ("sched_interval=1", hooks.get("SchedulerParameters"))))
    more = {"SlurmctldHost": "n1(127.0.0.1)", "AuthInfo": "", **hooks, "SchedulerParameters": scheduler}
    machine.must("mkdir", "-p", *(f"/var/lib/lab/{name}" for name in ("state", "spool/n1", "log", "run")), "/etc/slurm")
    machine.write("/etc/slurm/slurm.conf", conf_text(Path("/var/lib/lab"), {"n1": 6818}, 6817, 2, more) + "\n")
    # Nothing here counts by control groups. What slurmd finds by itself it refuses where the kernel has both versions.
    machine.write("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n")
    machine.write("/etc/default/slurmd", "SLURMD_OPTIONS='-N n1'\n")


def slurm_node(machine: Machine) -> str:
    return machine.out("scontrol", "show", "node", "n1")


def hooked(machine: Machine) -> None:
    """As the page has it: tried by hand, written down, `scontrol reconfigure`. Slurm then runs all three."""
    machine.must("env", "SLURM_JOB_ID=0", "/usr/lib/healthd/slurm/prolog.sh")
    slurm_conf(machine, hooks_we_ship())
    machine.must("scontrol", "reconfigure")
    assert machine.must("srun", "--chdir=/", "hostname").strip() == "n1"
    machine.must("systemctl", "restart", "slurmd")  # which looks before it registers
    counted = {
        f'healthd_hooks_total{{answer="passed",kind="{kind}"' for kind in ("prolog", "epilog", "health-check-program")
    }
    machine.wait(lambda: {each for each in counted if each not in metrics(machine)} == set(), 20, "three hooks")


def fall_off_the_bus(machine: Machine) -> None:
    record = f"4,1,{int(time.monotonic() * 1e6)},-;{OFF_THE_BUS.format(pci='0000:05:00')}\n"
    machine.write("/root/kmsg", record)


def drained(machine: Machine) -> None:
    """A GPU falls off the bus, in the file that stands for the kernel log: the node is drained, a job is refused."""
    fall_off_the_bus(machine)
    machine.wait(lambda: "DRAIN" in slurm_node(machine), 30, "the drain")
    assert "Reason=healthd: gpu.xid.79" in slurm_node(machine)
    script = machine.run("env", "SLURM_JOB_ID=4711", "SLURMD_NODENAME=n1", "/usr/lib/healthd/slurm/prolog.sh")
    assert script.returncode == 1, script.stderr
    assert "print healthd: node n1 is not fit for job 4711" in script.stdout


def overruled(machine: Machine) -> None:
    """The environment of the unit wins for a prolog without a daemon too; systemd and healthd read it in one way."""
    prolog = ("env", "SLURM_JOB_ID=4711", "SLURMD_NODENAME=n1", "/usr/lib/healthd/slurm/prolog.sh")
    machine.must("systemctl", "stop", "healthd")
    assert machine.run(*prolog).returncode == 1
    machine.write(ENVIRONMENT, f'{KMSG}; for tonight\n HEALTHD_REMEDIATION_MODE = "observe" \n')
    let_pass = machine.run(*prolog)
    assert (let_pass.returncode, let_pass.stdout) == (0, ""), let_pass.stderr
    assert f"# {ENVIRONMENT} HEALTHD_REMEDIATION_MODE\n" in machine.must("healthd", "config", "show")
    machine.must("systemctl", "start", "healthd")
    assert " · observe · " in machine.must("healthd", "status")
    machine.write(ENVIRONMENT, KMSG)
    machine.must("systemctl", "restart", "healthd")
    machine.write("/root/environment", SERVICE)
    unit = "[Service]\nType=oneshot\nEnvironmentFile=/root/environment\nExecStart=/bin/sh -c 'env -0 >/root/read'\n"
    machine.write("/run/systemd/system/reads.service", unit)
    machine.must("systemctl", "start", "reads")
    machine.must("rm", "/run/systemd/system/reads.service")
    told = dict(each.split("=", 1) for each in machine.must("cat", "/root/read").split("\0") if each[:8] == "HEALTHD_")
    assert told == SERVICE_VALUES


def controlled(machine: Machine) -> None:
    """The controller's unit: confined further it still reaches slurmctld; a reload keeps its process."""
    folder = "/run/systemd/system/healthd-controller.service.d"
    machine.must("mkdir", "-p", folder)
    machine.write(f"{folder}/kind.conf", "[Service]\nEnvironment=HEALTHD_PROVISIONER_KIND=ec2\n")
    machine.must("systemctl", "daemon-reload")
    machine.must("systemctl", "start", "healthd-controller")
    ask = ("systemctl", "show", "--value", "--property=MainPID", "healthd-controller")
    pid = machine.out(*ask)
    machine.wait(lambda: machine.run("healthd", "controller", "--status").returncode == 0, 20, "a round")
    machine.must("systemctl", "reload", "healthd-controller")
    machine.wait(
        lambda: machine.out("journalctl", "-u", "healthd-controller").count("controller started") == 2, 20, "2"
    )
    assert machine.out(*ask) == pid
    machine.must("systemctl", "stop", "healthd-controller")
    machine.must("rm", "-r", folder)
    machine.must("systemctl", "daemon-reload")


def metrics(machine: Machine) -> str:
    fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9809/metrics').read().decode())"
    return machine.out("/opt/healthd/bin/python", "-c", fetch)


def upgraded(machine: Machine) -> None:
    """Stopped, replaced, started; the configuration and what the daemon knows are as before."""
    pid, config = main_pid(machine), machine.out("cat", CONFIG)
    machine.must("apt-get", "install", "-y", "-qq", "/root/healthd_2.deb")
    assert machine.out("dpkg-query", "-W", "-f=${Version}", "healthd").startswith(f"{__version__}-2")
    machine.wait(lambda: machine.out("systemctl", "is-active", "healthd") == "active", 20, "the new version")
    assert main_pid(machine) not in (pid, "0")
    assert machine.out("cat", CONFIG) == config
    assert "gpu.xid.79" in machine.must("healthd", "status")
    back, on = ("apt-get", "install", "-y", "-qq", "--allow-downgrades", "/root/healthd_1.deb"), "/root/healthd_2.deb"
    machine.must("systemctl", "disable", "healthd")  # what an administrator has started runs on, enabled or not
    machine.must(*back)
    assert machine.out("systemctl", "is-active", "healthd") == "active"
    machine.must("systemctl", "stop", "healthd")  # and what one has stopped stays so
    machine.must("apt-get", "install", "-y", "-qq", on)
    machine.must(*back)
    assert machine.out("systemctl", "is-active", "healthd") == "inactive"
    assert machine.out("systemctl", "is-enabled", "healthd") == "disabled"
    machine.must("systemctl", "enable", "--now", "healthd")


def unhooked(machine: Machine) -> None:
    """Before a removal, as the page says: the hooks out of slurm.conf, and the node let in, by a person's own order."""
    slurm_conf(machine, {})
    machine.must("scontrol", "reconfigure")
    assert "healthd-cluster-0" in machine.out("scontrol", "show", "reservation")
    machine.must("scontrol", "update", "nodename=n1", "state=resume")
    machine.wait(
        lambda: "healthd" not in machine.out("scontrol", "show", "reservation"), 30, "the place to be given back"
    )
    assert "DRAIN" not in slurm_node(machine)


def removed(machine: Machine, before: set[str]) -> None:
    """Configuration and state are left, and in use again after an installation; a purge leaves nothing."""
    for line in shown("remove"):
        machine.must("sh", "-c", line)
    kept = ("", "/config.toml", "/config.schema.json", "/environment")
    left = files(machine) ^ before
    state = {each for each in left if each.startswith("./var/lib/healthd")}
    assert left - state == {f"./etc/healthd{name}" for name in kept}
    assert "./var/lib/healthd/healthd.db" in state
    assert machine.must("srun", "--chdir=/", "hostname").strip() == "n1"
    machine.must("apt-get", "install", "-y", "-qq", "--no-install-recommends", "/root/healthd_1.deb")
    machine.wait(lambda: machine.out("systemctl", "is-active", "healthd") == "active", 20, "the old config in use")
    machine.must("dpkg", "--unpack", "/root/healthd_2.deb")  # an upgrade that is broken off
    assert machine.out("cat", "/run/healthd.upgraded") == "active"
    machine.must("dpkg", "--remove", "healthd")
    assert machine.out("sh", "-c", "echo /run/healthd*") == "/run/healthd*"
    machine.must("apt-get", "install", "-y", "-qq", "--no-install-recommends", "/root/healthd_1.deb")
    slurm_conf(machine, hooks_we_ship())
    purged = machine.run("apt-get", "purge", "-y", "-qq", "healthd")
    assert purged.returncode == 0, purged.stderr
    assert "/etc/slurm/slurm.conf still names hooks that go now" in purged.stdout + purged.stderr  # a terminal of apt's
    assert files(machine) ^ before == set()
    assert machine.out("systemctl", "list-units", "--all", "--no-legend", "healthd*") == ""


def test_an_upgrade_from_a_package_with_a_venv(machine: Machine, debs: tuple[Path, Path]) -> None:
    """Packages had a venv of the distribution's Python before they brought their own. The upgrade keeps the
    configuration, what the daemon knows and that it runs, and leaves nothing of the venv behind."""
    older = debs[0]
    machine.copy(older, f"/root/{older.name}")
    machine.must("apt-get", "install", "-y", "-qq", "--no-install-recommends", f"/root/{older.name}")
    assert machine.out("readlink", "-f", "/opt/healthd/bin/python").startswith("/usr/bin/python3")
    machine.must("healthd", "init")
    machine.must("touch", "/root/kmsg")
    machine.write(ENVIRONMENT, KMSG)
    machine.must("systemctl", "start", "healthd")
    fall_off_the_bus(machine)
    machine.wait(lambda: "gpu.xid.79" in machine.out("healthd", "status"), 30, "the fault")
    pid, config = main_pid(machine), machine.out("cat", CONFIG)
    machine.must("rm", "/root/kmsg")  # from here on only the state can tell of the fault
    machine.must("touch", "/root/kmsg")
    machine.must("apt-get", "install", "-y", "-qq", "--no-install-recommends", "/root/healthd_1.deb")
    machine.wait(lambda: machine.out("systemctl", "is-active", "healthd") == "active", 20, "the new package's daemon")
    assert machine.out("readlink", "-f", "/opt/healthd/bin/python").startswith("/opt/healthd/bin/")
    assert machine.out("readlink", f"/proc/{main_pid(machine)}/exe").startswith("/opt/healthd/bin/")
    assert main_pid(machine) != pid
    assert machine.out("systemctl", "show", "--value", "--property=NeedDaemonReload", "healthd") == "no"
    assert machine.out("systemctl", "is-enabled", "healthd") == "enabled"
    assert machine.out("cat", CONFIG) == config
    assert "gpu.xid.79" in machine.must("healthd", "status")
    owned = set(machine.must("dpkg", "-L", "healthd").splitlines())
    assert set(machine.must("find", "/opt/healthd").splitlines()) - owned == set()
    machine.must("dpkg", "--verify", "healthd")
    machine.must("apt-get", "purge", "-y", "-qq", "healthd")


def test_a_daemon_that_stands_still_is_started_again(machine: Machine) -> None:
    """Stopped by SIGSTOP it sends no ping: systemd's watchdog ends it and starts another."""
    machine.must("apt-get", "install", "-y", "-qq", "--no-install-recommends", "/root/healthd_1.deb")
    folder = "/run/systemd/system/healthd.service.d"
    machine.must("mkdir", "-p", folder)
    machine.write(f"{folder}/quick.conf", "[Service]\nWatchdogSec=7\nWatchdogSignal=SIGKILL\nRestartSec=0\n")
    machine.must("systemctl", "daemon-reload")
    machine.must("systemctl", "start", "healthd")
    pid = main_pid(machine)
    time.sleep(8)
    assert main_pid(machine) == pid, "while it goes round it is left alone"
    machine.must("sh", "-c", f"kill -s STOP {pid}")  # the shell's own: a minimal Debian has no other
    machine.wait(lambda: main_pid(machine) not in (pid, "0"), 30, "another daemon")
    machine.wait(lambda: machine.out("systemctl", "is-active", "healthd") == "active", 20, "it is ready")
