"""The image as packaging/container/build.sh makes it, and programs in it as a container of it would run them.

No container engine is at hand here: a container is a chroot with namespaces of its own for mounts, processes and names,
/proc, /sys, a small /dev and an empty /run and /tmp. It needs root.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.support.limits import limit_s

ROOT = Path(__file__).parents[2]
_PREPARE = """
set -eu
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
for name in null zero full random urandom tty; do
    : > "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
for file in /etc/resolv.conf /etc/hosts; do
    if test -e "$file"; then
        test -e "$root$file" || : > "$root$file"
        mount --bind "$file" "$root$file"
    fi
done
for pair in $BINDS; do
    from=${pair%%:*} to=$root${pair#*:}
    if test -d "$from"; then mkdir -p "$to"; else mkdir -p "${to%/*}"; : > "$to"; fi
    mount --bind "$from" "$to"
done
if test -n "$RESTRICT"; then
    ip link set lo up
    mount -o remount,bind,ro "$root"
fi
exec env -i "$@"
"""


class Image(Struct, frozen=True, kw_only=True):
    """An image that was built: the folder of its files, and its ``config`` as the OCI image format has it."""

    root: Path
    config: dict[str, Any]

    def run(self, *argv: str, user: str = "", binds: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """A program as a container of this image, to its end."""
        command = self.start(*argv, user=user, binds=binds)
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit_s(90))

    def start(
        self,
        *argv: str,
        user: str = "",
        binds: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        restricted: bool = False,
    ) -> list[str]:
        """The command that runs ``argv`` as a container of this image would, as ``user`` or the image's own.

        ``binds``: ``from:to``. ``restricted``: with CAP_SYSLOG alone, in a network of its own, on a file system that
        cannot be written.
        """
        uid, _, gid = (user or self.config["User"]).partition(":")
        drop = ["setpriv", f"--reuid={uid}", f"--regid={gid or uid}", "--clear-groups"]
        drop += ["--bounding-set=-all,+syslog", "--inh-caps=-all", "--no-new-privs"] if restricted else []
        given = ["HOME=/", *self.config["Env"], *(f"{name}={value}" for name, value in (environ or {}).items())]
        unshare = ["unshare", "--mount", "--pid", "--fork", "--ipc", "--uts", "--kill-child"]
        unshare += ["--net"] if restricted else []
        prepared = ["env", f"BINDS={' '.join(binds)}", f"RESTRICT={'1' if restricted else ''}"]
        prepared += [*unshare, "sh", "-c", _PREPARE, "sh", str(self.root)]
        return [*prepared, *given, "chroot", str(self.root), *drop, *argv]


@contextlib.contextmanager
def built_image(folder: Path, architecture: str) -> Iterator[Image]:
    """The image of this checkout for ``architecture`` (amd64, arm64), unpacked below ``folder``, which goes in the end.
    The test is skipped where it cannot be built."""
    for program in ("buildah", "mmdebstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here: apt-get install {program}")
    if os.geteuid() != 0:
        pytest.skip("needs root, as packaging/container/build.sh does")
    storage = folder / "storage.conf"
    storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n')

    def output(*argv: str) -> str:
        environ = {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage), "ARCH": architecture, "TMPDIR": str(folder)}
        done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=ROOT, env=environ, timeout=3600)
        assert done.returncode == 0, f"{argv}: exit {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        return done.stdout.strip()

    try:
        packed = output("sh", "packaging/container/build.sh", str(folder))
        container = output("buildah", "from", "--arch", architecture, f"oci-archive:{packed}")
        inspected = json.loads(output("buildah", "inspect", container))
        yield Image(root=Path(output("buildah", "mount", container)), config=inspected["OCIv1"]["config"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def files_of(root: Path, *patterns: str) -> Iterator[Path]:
    """Files below ``root`` whose name fits one of the patterns, links included."""
    for folder, _, names in os.walk(root):
        yield from (Path(folder) / name for name in names if any(fnmatch.fnmatchcase(name, each) for each in patterns))
