"""The units as texts: what they must never say, and what they say of the daemon that the daemon says of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from healthd.api.exit_codes import ExitCode
from healthd.config.schema.daemon import DaemonSection
from tests.support.running import ROOT

UNITS = ROOT / "packaging/systemd"
# Each gives a service a mount namespace of its own (systemd.exec(5)) or restricts its devices.
OWN_VIEW = [
    "ProtectSystem",
    "ProtectHome",
    "ProtectProc",
    "ProcSubset",
    "ReadWritePaths",
    "ReadOnlyPaths",
    "InaccessiblePaths",
    "ExecPaths",
    "NoExecPaths",
    "TemporaryFileSystem",
    "PrivateTmp",
    "PrivateDevices",
    "PrivateNetwork",
    "PrivateIPC",
    "PrivateUsers",
    "PrivateMounts",
    "MountFlags",
    "MountAPIVFS",
    "ProtectHostname",
    "ProtectClock",
    "ProtectKernelTunables",
    "ProtectKernelModules",
    "ProtectKernelLogs",
    "ProtectControlGroups",
    "BindPaths",
    "BindReadOnlyPaths",
    "RootDirectory",
    "RootImage",
    "DynamicUser",
    "DeviceAllow",
    "DevicePolicy",
]


def settings(name: str) -> Mapping[str, list[str]]:
    """A unit's settings, each with its values in order."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text(encoding="utf-8").splitlines():
        if match := re.match(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def test_the_daemon_sees_the_node_as_it_is() -> None:
    """No option gives it mounts or devices of its own: it would find faults in them that no job sees."""
    unit = settings("healthd.service")
    assert [name for name in OWN_VIEW if name in unit] == []
    assert "CAP_SYSLOG" not in " ".join(unit["CapabilityBoundingSet"])
    assert all(value.startswith("~") for value in (*unit["CapabilityBoundingSet"], *unit["SystemCallFilter"]))


def test_the_clock_can_be_read_and_not_set() -> None:
    """`host.clock` reads it by adjtimex(2), which is one of @clock to systemd; to set it by that takes CAP_SYS_TIME."""
    unit = settings("healthd.service")
    denied = " ".join(unit["SystemCallFilter"]).lstrip("~").split()
    assert {"@clock", "adjtimex", "clock_adjtime"}.isdisjoint(denied)
    assert {"clock_settime", "settimeofday"} <= set(denied)
    assert "CAP_SYS_TIME" in " ".join(unit["CapabilityBoundingSet"])


@pytest.mark.parametrize("name", ["healthd.service", "healthd-controller.service"])
def test_what_cannot_get_better_by_a_start_is_not_started_again(name: str) -> None:
    """A wrong command line or configuration ends it for good; everything else is tried again, for ever."""
    unit = settings(name)
    assert unit["RestartPreventExitStatus"] == [f"{ExitCode.USAGE:d} {ExitCode.CONFIG:d}"]
    assert (unit["Restart"], unit["StartLimitIntervalSec"]) == (["always"], ["0"])
    assert unit["Type"] == ["notify"]
    here = " --here" if name == "healthd.service" else ""  # a head node is not tried out as a node
    assert unit["ExecReload"][0] == f"/usr/bin/healthd config validate{here}"
    assert int(unit["WatchdogSec"][0]) >= 2 * 5


def test_folders_are_where_the_configuration_has_them() -> None:
    """What systemd makes is what the daemon uses by itself."""
    unit, daemon = settings("healthd.service"), DaemonSection()
    assert f"/var/lib/{unit['StateDirectory'][0]}" == daemon.state_dir
    assert str(Path(daemon.socket).parent) == f"/run/{unit['RuntimeDirectory'][0]}"


def test_no_quota_slows_an_active_test() -> None:
    """The slice weighs and bounds; a quota of CPU time would make NCCL slow on a good node."""
    assert {"CPUQuota", "MemoryHigh"} & set(settings("healthd.slice")) == set()
    assert {"CPUWeight", "MemoryMax", "TasksMax"} <= set(settings("healthd.slice"))


def test_every_unit_and_hook_is_staged() -> None:
    """What lies in packaging/systemd is what packages install; a unit that is added is not forgotten."""
    text = (ROOT / "packaging/stage.sh").read_text(encoding="utf-8")
    spec = (ROOT / "packaging/rpm/healthd.spec").read_text(encoding="utf-8")
    for path in UNITS.iterdir():
        assert f"packaging/systemd/{path.name}" in text
        assert f"/usr/lib/systemd/system/{path.name}\n" in spec
