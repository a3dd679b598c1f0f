"""A minimal root of a distribution, in memory over a cached one, and gone with its namespaces.

It has no network but loopback, and no systemd. What happens in it is a script of sh, which leaves what it found in a
folder of the test.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# `inside` runs a command in the root, `list` prints its files. The script that follows has its arguments from $1 on.
_PREPARED = """
set -eu
base=$1 over=$2 root=$2/memory/root
shift 2
mkdir "$over/memory"
mount -t tmpfs -o mode=755 tmpfs "$over/memory" # a package manager waits for a disk after each of its files
mkdir "$over/memory/upper" "$over/memory/work" "$root"
mount -t overlay -o "lowerdir=$base,upperdir=$over/memory/upper,workdir=$over/memory/work" overlay "$root"
mount -t proc proc "$root/proc"
for folder in dev run tmp; do mount -t tmpfs tmpfs "$root/$folder"; done
for name in null zero random urandom; do
    : >"$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
ln -s /proc/self/fd "$root/dev/fd"
ip link set lo up
inside() {
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \\
        DEBIAN_FRONTEND=noninteractive AWS_EC2_METADATA_DISABLED=true chroot "$root" "$@"
}
# But for what package managers keep of every package: lists, logs, alternatives and caches.
list() {
    (cd "$root" && find . -xdev \\( -path './var/lib/dpkg' -o -path './var/lib/apt' -o -path './var/cache' \\
        -o -path './var/log' -o -path './var/lib/systemd' -o -path './var/lib/rpm*' -o -path './usr/lib/sysimage' \\) \\
        -prune -o -print | sort)
}
# The daemon of the healthd that is installed there, until it answers; `stop_daemon` ends it.
start_daemon() {
    inside healthd init >"$over/init" 2>&1
    inside sh -c 'echo $$ >/run/daemon.pid; exec healthd run' >"$over/daemon" 2>&1 &
    daemon=$!
    tries=0
    until inside healthd status >"$over/status" 2>&1; do
        tries=$((tries + 1))
        test $tries -lt 300
        sleep 0.2
    done
}
stop_daemon() {
    kill -s TERM "$(cat "$root/run/daemon.pid")"
    wait $daemon
}
# By this machine's rpm. Where that comes from Debian, it asks to be told that a package of RPM is meant.
FORCE=
! rpm --help 2>/dev/null | grep -q force-debian || FORCE=--force-debian
book() { rpm --root "$root" --dbpath /var/lib/rpm $FORCE "$@"; }
"""


def ran(
    script: str, base: Path, over: Path, *arguments: str | Path, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of sh on a new root over ``base``; $over is the folder ``over``."""
    argv = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", _PREPARED + script, "sh"]
    return subprocess.run(
        [*argv, str(base), str(over), *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=1800,
        env={**os.environ, **environ},
    )
