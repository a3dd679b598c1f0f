"""A clean Debian that is booted: systemd as its first process, in namespaces of its own, from a cached root.

What is written goes into memory, over the cached root, and is gone with the machine. The machine has no network
but its own loopback. It needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.debian_root import debian_root
from tests.support.limits import limit_s

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a node of a Slurm cluster has before anybody thinks of healthd, and what healthd's package may ask for.
INSTALLED = ("systemd", "slurmctld", "slurmd", "slurm-client", "munge")

_PREPARE = """
set -eu
root=$1 python=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
printf '#!/bin/sh\\nexit 101\\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
export DEBIAN_FRONTEND=noninteractive
chroot "$root" apt-get update -qq
chroot "$root" apt-get install -y -qq --no-install-recommends "$@"
chroot "$root" apt-get clean
chroot "$root" apt-get install -y -qq --no-install-recommends --download-only "$python" python3-apt
rm "$root/usr/sbin/policy-rc.d" "$root/etc/resolv.conf"
echo n1 >"$root/etc/hostname"
echo 127.0.0.1 localhost n1 >"$root/etc/hosts"
"""
# In a control group of its own, which is the root of what it sees of control groups.
_BOOT = """
set -eu
echo $$ >"$1/cgroup.procs"
shift
exec unshare --mount --pid --fork --ipc --uts --net --cgroup --kill-child sh -c "$@"
"""
_INSIDE = """
set -eu
base=$1 over=$2 path=$3 root=$2/root
shift 3
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$over" # a package manager waits for a disk after each of its files
mkdir "$over/upper" "$over/work" "$root"
mount -t overlay -o "lowerdir=$base,upperdir=$over/upper,workdir=$over/work" overlay "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
for name in null zero full random urandom tty kmsg; do
    : >"$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
ip link set lo up
ip address add 192.0.2.1/32 dev lo # Slurm looks up names only where there is more than loopback
cd "$root"
exec env -i container=test "PATH=$path" chroot . "$@"
"""
_SYSTEMD = ("/lib/systemd/systemd", "--unit=multi-user.target", "--log-target=null")


def release() -> dict[str, str]:
    """The words of this machine's /etc/os-release."""
    text = Path("/etc/os-release").read_text(encoding="utf-8") if Path("/etc/os-release").exists() else ""
    return {name: value.strip('"') for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)}


def clean_root() -> Path:
    """The root of a Debian like this one, of a Slurm node without healthd. Made once. Skips where it cannot be made.

    It has no Python. What a venv of this machine's depends on lies in apt's cache there, with what Ansible's apt needs.
    """
    here = release()
    if here.get("ID") != "debian":
        pytest.skip(f"the clean machine is of this machine's own release, and this is no Debian: {here.get('ID')}")
    python = Path("/usr/bin/python3").resolve().name
    return debian_root(here["VERSION_CODENAME"], _PREPARE, (python, *INSTALLED))


class Machine:
    """A booted machine: what is run in it, and what is written into it."""

    def __init__(self, base: Path, folder: Path) -> None:
        self._base, self._folder = base, folder
        self._cgroup = _cgroup_folder() / f"healthd-test-{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._first = ""

    def boot(self) -> None:
        """Start it, and return once systemd says that it runs. Skips where namespaces and mounts are not allowed."""
        try:
            self._cgroup.mkdir(exist_ok=True)
        except OSError as error:
            pytest.skip(f"no machine can be booted here: no control group can be made: {error}")
        tried = subprocess.run(
            self._booting("/bin/true"), check=False, capture_output=True, text=True, timeout=limit_s(60)
        )
        if tried.returncode != 0:
            pytest.skip(f"no machine can be booted here: {tried.stderr.strip()[-300:]}")
        with (self._folder / "boot.log").open("wb") as log:
            self._process = subprocess.Popen(self._booting(*_SYSTEMD), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.wait(self._begun, 30, "a first process")
        self.wait(lambda: self.out("systemctl", "is-system-running") in ("running", "degraded"), 60, "systemd to run")

    def _booting(self, *first: str) -> list[str]:
        """The command that makes ``first`` the first process of a machine, which ends when its parent does."""
        control, base, folder = str(self._cgroup), str(self._base), str(self._folder)
        begin = ["setpriv", "--pdeathsig=KILL", "sh", "-c", _BOOT, "sh", control]
        return [*begin, _INSIDE, "sh", base, folder, PATH, *first]

    def _begun(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "boot.log").read_text()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children or Path(f"/proc/{children[0]}/comm").read_text().strip() != "systemd":
            return False
        self._first = children[0]
        return True

    def run(self, *argv: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root's login would."""
        command = [*self.login(), *argv]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_s)

    def login(self) -> list[str]:
        """The beginning of a command that runs inside, as root's login would run it."""
        return [*self._enter(), "env", "-i", f"PATH={PATH}", "HOME=/root", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"]

    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self._first}", "--all", "--root", "--wd"]

    def must(self, *argv: str, timeout_s: float = 120.0) -> str:
        """Run a command that must succeed; what it printed."""
        done = self.run(*argv, timeout_s=timeout_s)
        output = f"{' '.join(argv)}: exit {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        assert done.returncode == 0, output + self.journal()
        return done.stdout

    def out(self, *argv: str) -> str:
        """What a command printed, however it ended."""
        return self.run(*argv).stdout.strip()

    def write(self, path: str, text: str) -> None:
        """Write a file inside."""
        self._written(path, text.encode())

    def copy(self, source: Path, path: str) -> None:
        """Copy a file of this machine into it."""
        self._written(path, source.read_bytes())

    def _written(self, path: str, data: bytes) -> None:
        argv = [*self._enter(), "/bin/sh", "-c", 'cat >"$0"', path]
        done = subprocess.run(argv, input=data, check=False, timeout=limit_s(60))
        assert done.returncode == 0, path

    def journal(self) -> str:
        """The end of what healthd's services said."""
        message = self.run("journalctl", "--no-pager", "--lines=40", "--unit=healthd*")
        return f"\n-- journal\n{message.stdout[-6000:]}" if self._first else ""

    def wait(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        """Poll until it is so."""
        end = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < end, f"not within {within_s:g} s: {what}{self.journal()}"
            time.sleep(0.2)

    def stop(self) -> None:
        """End it with everything in it: the end of its first process ends its namespace."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=limit_s(30))
        end = time.monotonic() + 20
        while self._cgroup.exists() and time.monotonic() < end:
            for folder in sorted(self._cgroup.rglob("*/"), reverse=True):
                with contextlib.suppress(OSError):  # not empty yet: the next round
                    folder.rmdir()
            with contextlib.suppress(OSError):
                self._cgroup.rmdir()
                return
            time.sleep(0.1)


def _cgroup_folder() -> Path:
    """Where the second version of control groups is mounted here."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            return Path(line.split()[4])
    pytest.skip("no cgroup2 here, which systemd needs")


@contextlib.contextmanager
def booted(base: Path, folder: Path) -> Iterator[Machine]:
    """A machine from its start to its end."""
    machine = Machine(base, folder)
    try:
        machine.boot()
        yield machine
    finally:
        machine.stop()
        shutil.rmtree(folder, ignore_errors=True)
