"""Pins one more version of Kubernetes that the tests run on: writes go.mod and go.sum into ``binaries/1.X``.

    python -m tests.live.kubernetes.pin_kubernetes 1.30 | 1.37.2 | newest

Of a minor version it takes the newest patch that the module proxy has. The go.mod of that Kubernetes says the rest: its
staging modules, which become their published versions, the etcd whose client it is built with, and its Go. go.sum then
vouches for every source, as Go's checksum database does when it is written here. Needs Go and its module proxy.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.live.kubernetes.find_binaries import CONTROL_PLANE, ETCD_PACKAGE, HERE, KUBERNETES_COMMANDS

MODULE = "k8s.io/kubernetes"
PACKAGES = (ETCD_PACKAGE, *(f"{KUBERNETES_COMMANDS}/{name}" for name in (*CONTROL_PLANE[1:], "kubectl")))
_RELEASE = re.compile(r"v(1)\.(\d+)\.(\d+)")


def go_mod(version: str, of_kubernetes: str) -> str:
    """The go.mod that builds the programs of ``version`` (v1.X.Y). ``of_kubernetes``: Kubernetes' own at that version.

    Raises ValueError where that names no staging modules, no etcd or no Go.
    """
    staging = re.findall(r"^\s*(?:replace )?(\S+) => \./staging/", of_kubernetes, re.MULTILINE)
    etcd = re.search(r"^\s*go\.etcd\.io/etcd/client/v3 (v\S+)", of_kubernetes, re.MULTILINE)
    go = re.search(r"^go (\S+)", of_kubernetes, re.MULTILINE)
    if not staging or etcd is None or go is None:
        raise ValueError(f"the go.mod of {MODULE} {version} is of another shape than this script knows")
    published = version.replace("v1.", "v0.", 1)
    lines = ["module healthd.io/tests/binaries", "", f"go {go[1]}", "", "require ("]
    lines += [f"\tgo.etcd.io/etcd/server/v3 {etcd[1]}", f"\t{MODULE} {version}", ")", "", "replace ("]
    lines += [f"\t{name} => {name} {published}" for name in sorted(staging)]
    return "\n".join([*lines, ")", ""])


def newest_patch(wanted: str, versions: list[str]) -> str:
    """Of the released ``versions`` the one that ``wanted`` means: newest, 1.X, or 1.X.Y. Raises ValueError for none."""
    found = [
        (tuple(int(part) for part in match.groups()), each) for each in versions if (match := _RELEASE.fullmatch(each))
    ]
    fits = [each for each in found if wanted == "newest" or f"{each[1]}.".startswith(f"v{wanted}.")]
    if not fits:
        raise ValueError(f"there is no {MODULE} {wanted}; the newest is {max(found)[1] if found else 'not known'}")
    return max(fits)[1]


def pin(wanted: str) -> Path:
    """Write the folder of this version, and return it. Raises ValueError, and CalledProcessError where Go refuses."""
    with tempfile.TemporaryDirectory() as empty:
        versions = _go(Path(empty), "list", "-m", "-versions", MODULE).split()[1:]
        version = newest_patch(wanted, versions)
        own = json.loads(_go(Path(empty), "mod", "download", "-json", f"{MODULE}@{version}"))["GoMod"]
    folder = HERE / version.removeprefix("v").rpartition(".")[0]
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text(go_mod(version, Path(own).read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "go.sum").unlink(missing_ok=True)
    _go(folder, "list", "-deps", *PACKAGES)
    return folder


def _go(where: Path, *words: str) -> str:
    env = {**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}
    return subprocess.run(["go", *words], cwd=where, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(wanted: list[str]) -> int:
    """Pin what is named; 64 where nothing is."""
    if not wanted:
        sys.stderr.write((__doc__ or "") + "\n")
        return 64
    for each in wanted:
        folder = pin(each)
        sys.stdout.write(f"{folder}: {len((folder / 'go.sum').read_text(encoding='utf-8').splitlines())} sums\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
