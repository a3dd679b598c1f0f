"""nhc.conf becomes configuration that loads; a line that sets nothing is a comment; all mistakes are told."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from healthd.config.load import load
from healthd.core.check import discover
from healthd.core.errors import ConfigError
from healthd.setup.from_nhc import from_nhc


class Node:
    """The facts of a node."""

    def __init__(self, name: str = "gpu7") -> None:
        self._name = name

    def host(self) -> list[str]:
        return [self._name]

    def label(self) -> list[str]:
        return []

    instance_type = partition = label


CHECKS = {name: check.settings for name, check in discover().items()}
GPU_CLUSTER = """
# nhc.conf of a cluster of p5 nodes, written by hand for this test
* || export MARK_OFFLINE=0
* || HOSTNAME="$HOSTNAME_S"
* || export TIMEOUT=60

* || check_hw_cpuinfo 2 96 192
* || check_hw_physmem 2TB 2TB 5%
* || check_hw_swap 0kB 0kB 3%
* || check_hw_eth lo
* || check_hw_eth ens32
* || check_hw_mcelog
* || check_nvsmi_healthmon

* || check_fs_mount_rw -t "ext4" -s "/dev/root" -f "/"
* || check_fs_mount_rw -t "tmpfs" -f "/tmp"
* || check_fs_mount_rw -t "nfs4" -s "fs-1:/home" -f "/home"
* || check_fs_mount_rw -t "lustre" -f "/fsx"
* || check_fs_mount_ro -t "lustre" -f "/datasets"
* || check_fs_used / 90%
* || check_fs_free /tmp 5%
* || check_fs_inodes /tmp 1k

* || check_ps_service -u root -S sshd
* || check_ps_service -r -d slurmd slurmd
* || check_ps_daemon nvidia-persistenced root
* || check_ps_blacklist rogue
* || check_net_socket -n "sshd" -p tcp -s LISTEN -l "*:22"
* || check_cmd_output -t 5 -r 0 -m '/ok/' /usr/local/bin/site-check
"""


def made(text: str) -> Mapping[str, Any]:
    return tomllib.loads("\n".join(from_nhc(text, name="nhc.conf")))


def comments(text: str) -> list[str]:
    return [line for line in from_nhc(text, name="nhc.conf") if line.startswith("# nhc.conf:")]


def test_a_whole_file_becomes_settings_that_load(tmp_path: Path) -> None:
    """Each requirement is in the check that has it, and healthd takes the file."""
    checks = made(GPU_CLUSTER)["checks"]
    assert checks == {
        "host.cpu": {"sockets": 2, "count": 192},
        "host.memory": {"min_total_bytes": int((2 << 40) * 0.95), "swap": False},
        "host.network": {"interfaces": ["ens32"]},
        "host.filesystems": {"min_free_ratio": 0.1, "writable": ["/", "/tmp"], "must_have_room": ["/", "/tmp"]},
        "host.expect": {
            "mounts": ["/ ext4 /dev/root", "/tmp tmpfs", "/home nfs4 fs-1:/home"],
            "processes": ["nvidia-persiste"],
            "forbidden_processes": ["rogue"],
        },
        "lustre.mount": {"mounts": ["/fsx", "/datasets"], "read_only": ["/datasets"]},
        "host.services": {"required": ["sshd.service", "slurmd.service"]},
        "host.reach": {"ports": ["127.0.0.1:22"]},
    }
    path = tmp_path / "config.toml"
    path.write_text("\n".join(from_nhc(GPU_CLUSTER, name="nhc.conf")))
    loaded = load(path, checks=CHECKS, environ={}).config
    assert loaded.checks["host.expect"].settings.mounts[2] == "/home nfs4 fs-1:/home"


def test_a_line_that_sets_nothing_is_a_comment_with_its_reason() -> None:
    """The number, the line and why: healthd does it by itself, has no counterpart, or a plug-in can."""
    found = "\n".join(comments(GPU_CLUSTER))
    for words in (
        "nhc.conf:3: * || export MARK_OFFLINE=0: mode observe",
        "nhc.conf:5: * || export TIMEOUT=60: a setting of NHC itself",
        "check_hw_eth lo: the loopback",
        "check_hw_mcelog: healthd does this by itself",
        "check_nvsmi_healthmon: healthd does this by itself",
        "count has the threads",
        "that a network file system takes writes is not checked",
        "check_fs_inodes /tmp 1k: no counterpart",
        "healthd starts and stops no service",
        "the kernel keeps 15 characters",
        "site-check: no counterpart; a plug-in can run it",
    ):
        assert words in found


def test_lines_for_some_hosts_are_a_match(tmp_path: Path) -> None:
    """A glob and a range of nodes become [[match]]; its lists have those for all hosts too."""
    text = """
* || check_ps_service munge
gpu* || check_ps_service nvidia-persistenced
{n[01-16,20],login} || check_fs_mount -f /scratch
/^gpu[0-9]+$/ || check_ps_service other
!io* || check_ps_service other
"""
    data = made(text)
    assert data["checks"] == {"host.services": {"required": ["munge.service"]}}
    assert data["match"] == [
        {"host": ["gpu*"], "checks": {"host.services": {"required": ["munge.service", "nvidia-persistenced.service"]}}},
        {"host": ["n[01-16,20]", "login"], "checks": {"host.expect": {"mounts": ["/scratch"]}}},
    ]
    assert sum("knows no regular expression" in line for line in comments(text)) == 2
    path = tmp_path / "config.toml"
    path.write_text("\n".join(from_nhc(text, name="nhc.conf")))
    here = load(path, checks=CHECKS, environ={}, who=lambda _config: Node()).config
    assert "nvidia-persistenced.service" in here.checks["host.services"].settings.required


def test_lists_of_any_length_load(tmp_path: Path) -> None:
    """healthd reads no line of more than 1,024 characters: hosts and mounts stand one on a line, comments are cut."""
    hosts = [f"n{number:04}" for number in range(0, 400, 2)]
    text = f"{{{','.join(hosts)}}} || check_hw_swap 0 0\n* || check_site {'x' * 2_000}\n"
    text += "".join(f"* || check_fs_mount -t nfs4 -f /home/projects/team-{number:03}\n" for number in range(60))
    path = tmp_path / "config.toml"
    path.write_text("\n".join(from_nhc(text, name="nhc.conf")))
    mounts = load(path, checks=CHECKS, environ={}).config.checks["host.expect"].settings.mounts
    assert (len(mounts), made(text)["match"][0]["host"]) == (60, hosts)


LINES_THAT_ADD_UP = """
* || check_hw_physmem 256GB
* || check_fs_used / 90%
{n01,n02} || check_fs_mount -f /local
n0* || check_fs_mount -f /rack0
n* || check_fs_mount -f /scratch
n* || check_hw_physmem 128GB
login* || check_fs_used / 95%
"""


@pytest.mark.parametrize(("host", "mounts"), [("n01", ["/scratch", "/rack0", "/local"]), ("n12", ["/scratch"])])
def test_every_line_that_fits_a_node_counts(tmp_path: Path, host: str, mounts: Sequence[str]) -> None:
    """As in NHC: a line for a few hosts takes nothing from those for many, wherever it stands, and lessens no limit."""
    path = tmp_path / "config.toml"
    path.write_text("\n".join(from_nhc(LINES_THAT_ADD_UP, name="nhc.conf")))
    checks = load(path, checks=CHECKS, environ={}, who=lambda _: Node(host)).config.checks
    assert list(checks["host.expect"].settings.mounts) == mounts
    assert checks["host.memory"].settings.min_total_bytes == 256 << 30
    login = load(path, checks=CHECKS, environ={}, who=lambda _: Node("login1")).config.checks
    assert login["host.filesystems"].settings.min_free_ratio == 0.1


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("{n[01-08]}", "{n[05-16]}", "# A node that is also one of n[01-08] gets this list alone"),
        ("n1*", "n*5", "# A node that is also one of n1* gets this list alone"),
        ("n1*", "n2*", ""),
        ("{n[01-08]}", "{n[09-16]}", ""),
    ],
)
def test_hosts_that_may_overlap_are_told(one: str, other: str, words: str) -> None:
    """Where neither has all hosts of the other, a node of both gets the last list: the comment says so."""
    text = f"{one} || check_fs_mount -f /a\n{other} || check_fs_mount -f /b\n"
    found = [line for line in from_nhc(text, name="nhc.conf") if line.startswith("# A node")]
    assert [line.partition(":")[0] for line in found] == ([words] if words else [])
    assert [match["checks"] for match in made(text)["match"]] == [
        {"host.expect": {"mounts": ["/a"]}},
        {"host.expect": {"mounts": ["/b"]}},
    ]


@pytest.mark.parametrize(
    ("command", "check", "settings"),
    [
        ("check_hw_physmem 64G 64G", "host.memory", {"min_total_bytes": 64 << 30}),
        ("check_hw_physmem 1024 0 512K", "host.memory", {"min_total_bytes": 1 << 19}),
        ("check_hw_physmem 128GB", "host.memory", {"min_total_bytes": 128 << 30}),
        ("check_hw_swap 1G 2G", "host.memory", {"swap": True}),
        ("check_hw_cpuinfo 1 24 24", "host.cpu", {"sockets": 1, "count": 24}),
        ("check_fs_mount -0 -t /nfs.*/ -f /home", "host.expect", {"mounts": ["/home"]}),
        ("check_fs_mount -s srv:/a /a /b/", "host.expect", {"mounts": ["/a", "/b"]}),
        ("check_fs_mount -rf /", "host.expect", {"mounts": ["/"]}),
        (
            "check_fs_mount -0rt nfs4 -s srv:/a -F /a -f/b",
            "host.expect",
            {"mounts": ["/b nfs4 srv:/a", "/a nfs4 srv:/a"]},
        ),
        ("check_fs_mount / /dev/root ext4 rw", "host.expect", {"mounts": ["/ ext4 /dev/root"]}),
        ("check_fs_mount / /dev/root", "host.expect", {"mounts": ["/"]}),
        ("check_fs_mount / '' ext4", "host.expect", {"mounts": ["/ ext4"]}),
        ("check_ps_service -Sr munge", "host.services", {"required": ["munge.service"]}),
        ("check_ps_service -vfu root -- munge", "host.services", {"required": ["munge.service"]}),
        ("check_net_socket -0a -l*:22", "host.reach", {"ports": ["127.0.0.1:22"]}),
        ("check_fs_used /var 85.5%", "host.filesystems", {"min_free_ratio": 0.145, "must_have_room": ["/var"]}),
        ("check_fs_free /var/ 10GB", "host.filesystems", {"must_have_room": ["/var"]}),
        ("check_ps_service -u root chronyd.service", "host.services", {"required": ["chronyd.service"]}),
        ("check_ps_daemon /usr/sbin/munged", "host.expect", {"processes": ["munged"]}),
    ],
)
def test_a_line_becomes_its_setting(command: str, check: str, settings: Mapping[str, object]) -> None:
    """Units, fudge, shares and options are read as NHC reads them."""
    assert made(f"* || {command}")["checks"] == {check: settings}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("check_hw_swap 0 4G", "any amount is allowed"),
        ("check_hw_physmem 0 64G", "healthd has no upper limit"),
        ("check_hw_ib 200", "InfiniBand is not read"),
        ("check_hw_mem_free 1G", "warns of pressure"),
        ("check_ps_loadavg 90 80 70", "is the job's"),
        ("check_net_socket -! -l *:23", "only a TCP port that must listen"),
        ("check_net_socket -p udp -l *:123", "only a TCP port that must listen"),
        ("check_fs_mount -O remount -o rw -f /a", "options (-o) are not compared; healthd remounts nothing"),
        ("check_fs_mount_rw -t ceph -f /data", "that a network file system takes writes is not checked"),
        ("check_fs_mount -t /nfs.*/ -f /home", "a pattern of a type or source is not compared"),
        ("check_fs_mount -rf /", "healthd remounts nothing"),
        ("check_ps_service -fk rogue", "a service that must not run"),
        ("check_net_socket -0! -l *:23", "only a TCP port that must listen"),
        ("/usr/local/sbin/my_check --all", "a plug-in can run it"),
    ],
)
def test_what_has_no_setting_is_told(command: str, words: str) -> None:
    """The comment says which part of the line is not in the configuration."""
    (line,) = comments(f"* || {command}")
    assert words in line


@pytest.mark.parametrize(
    "command",
    [
        f"check_hw_physmem {'9' * 400}GB 1TB",
        "check_hw_physmem 9000P 1TB",
        f"check_hw_swap {'9' * 400} 1TB",
        "check_hw_cpuinfo 2 99999999999999999999 4",
    ],
)
def test_a_number_that_no_configuration_can_hold_is_a_mistake(command: str) -> None:
    """A typo of too many digits is named by its line, as any other."""
    with pytest.raises(ConfigError, match=r"nhc\.conf:1: .*: expected a (size|whole number)"):
        from_nhc(f"* || {command}", name="nhc.conf")


def test_all_mistakes_are_told_with_their_lines() -> None:
    """A file that is no nhc.conf, or has wrong arguments, writes nothing: each line is named."""
    text = """[checks]
* || check_hw_cpuinfo two
* || check_fs_mount_rw home
* || check_fs_used tmp 90%
* || check_fs_used /tmp 900%
* || check_fs_used /tmp
* || check_hw_physmem lots
* || check_ps_service
* || check_ps_daemon
* || check_ps_service -u
* || check_ps_service -Sx munge
* || check_ps_daemon -u root
* || check_cmd_status 'open
|| check_hw_mcelog"""
    with pytest.raises(ConfigError) as caught:
        from_nhc(text, name="nhc.conf")
    problems = caught.value.problems
    assert [problem.split(":")[1] for problem in problems] == [str(number) for number in range(1, 15)]
    status = "\n".join(problems)
    for words in ("expected HOSTS || CHECK", "whole number", "begins with /", "a share such as 10%", "256GB"):
        assert words in status
    for words in (
        "expected one service; got nothing",
        "the name of a process",
        "option -u requires argument",
        "option -x not recognized",
        "quotes do not match",
    ):
        assert words in status


def test_a_control_character_stays_in_its_comment() -> None:
    """No line of the file can end the comment that quotes it."""
    assert made("* || check_hw_mcelog \x1b[2J\x00") == {}


@pytest.mark.parametrize("text", ["", "\n\n", "# all of it\n#* || check_hw_mcelog\n"])
def test_a_file_without_a_check_is_a_mistake(text: str) -> None:
    """A copy that failed does not become a configuration that requires nothing."""
    with pytest.raises(ConfigError, match=r"nhc\.conf: no line says HOSTS"):
        from_nhc(text, name="nhc.conf")
