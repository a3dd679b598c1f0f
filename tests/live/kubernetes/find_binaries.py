"""The programs of a Kubernetes control plane, and both majors of helm: found, else built once into a cache.

    python -m tests.live.kubernetes.find_binaries [NAME ...]

For each program, the first that applies: the folder in ``KUBEBUILDER_ASSETS`` (the convention of controller-runtime's
envtest, whose archives hold etcd, kube-apiserver and kubectl); the cache; PATH, where the program has a version that
the tests speak for; a build with ``go`` from the modules pinned in ``binaries/``, whose go.sum vouches for every
source. `go install` cannot build the API server: its module names its staging modules by replace directives, which
binaries/go.mod repeats with their published versions (v1.X.Y is v0.X.Y).

HEALTHD_TEST_KUBERNETES_VERSION asks for another Kubernetes than the one pinned in ``binaries/``: 1.X of a folder
``binaries/1.X``, which pin_kubernetes.py writes, or ``newest`` of them. Programs in the assets or in PATH are then
taken only where they are of that version.

One builder works at a time, over all sessions of this machine, at its caller's niceness. It says how far it is, and so
does each session that waits for it. What a cancelled one has compiled stays in Go's cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from tests.support.limits import limit_s

HERE = Path(__file__).parent / "binaries"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager")
# The oldest API server that the tests speak for, which is the oldest that the chart installs on.
OLDEST = (1, 30)
BUILD_WITHIN_S = 3600.0
SAYS_EACH_S = 30.0
# How a program in PATH says its version, the oldest that is taken, and the first that is not. etcd: WatchList and
# consistent lists from the cache. That of a pinned Kubernetes is the one whose client it is built with. kubectl: one
# minor from the default's API server (kubernetes.io/releases/version-skew-policy).
IN_PATH = {
    "etcd": (("--version",), (3, 6), (4, 0)),
    "kube-apiserver": (("--version",), OLDEST, (2, 0)),
    "kube-controller-manager": (("--version",), OLDEST, (2, 0)),
    "kubectl": (("version", "--client"), (1, 33), (1, 36)),
    "helm": (("version", "--short"), (3, 14), (4, 0)),
}

Say = Callable[[str], object]


class Unavailable(Exception):
    """A program is neither here nor can it be built; the sentence says what to do. Tests are skipped with it."""


class BuildFailed(Exception):
    """Go had the sources and did not make a program of them, or go.sum does not vouch for them: a fault, no skip."""


class Recipe(Struct, frozen=True, kw_only=True):
    """How a program is built: ``module`` is a folder below binaries/, ``package`` what is built in it."""

    module: str
    package: str
    ldflags: str = "-s -w"


def pinned() -> dict[str, tuple[int, int]]:
    """The folders below binaries/ that pin a Kubernetes, with its major and minor version, the oldest first."""
    versions = {folder.name: _major_minor(folder.name) for folder in HERE.glob("1.*") if (folder / "go.mod").exists()}
    return dict(sorted(versions.items(), key=lambda each: each[1]))


def asked_for() -> str:
    """The Kubernetes that the session asks for, as the name of its folder; "" for the one that is tested by default.

    Raises LookupError where no such version is pinned.
    """
    # conftest.py drops the prefix: healthd takes each HEALTHD_ variable for a setting of its own.
    wanted = os.environ.get("TEST_KUBERNETES_VERSION") or os.environ.get("HEALTHD_TEST_KUBERNETES_VERSION") or ""
    known = list(pinned())
    name = known[-1] if wanted == "newest" and known else wanted
    if name == ".".join(str(part) for part in _kubernetes_of(HERE)[:2]):
        return ""
    if name and name not in known:
        raise LookupError(
            f"Kubernetes {wanted} is not pinned, expected newest or one of {', '.join(known)}: "
            f"python -m tests.live.kubernetes.pin_kubernetes {wanted}"
        )
    return name


def recipe(name: str) -> Recipe:
    """How this program is built for the Kubernetes that the session asks for. Raises LookupError as ``asked_for``."""
    if name in OF_THEIR_OWN:
        return OF_THEIR_OWN[name]
    module = asked_for() or "."
    if name == "etcd":
        return Recipe(module=module, package=ETCD_PACKAGE)
    # Unstamped, the API server would say v0.0.0, which clients refuse.
    major, minor, patch = _kubernetes_of(HERE / module)
    of = "-X k8s.io/component-base/version"
    version = f"{of}.gitVersion=v{major}.{minor}.{patch} {of}.gitMajor={major} {of}.gitMinor={minor}"
    return Recipe(module=module, package=f"{KUBERNETES_COMMANDS}/{name}", ldflags=f"-s -w {version}")


def _kubernetes_of(module: Path) -> tuple[int, int, int]:
    """The Kubernetes that the go.mod of this folder pins."""
    found = re.search(r"k8s\.io/kubernetes v(1)\.(\d+)\.(\d+)", (module / "go.mod").read_text(encoding="utf-8"))
    assert found is not None, f"{module}/go.mod does not name its Kubernetes"
    return int(found[1]), int(found[2]), int(found[3])


ETCD_PACKAGE = "go.etcd.io/etcd/server/v3"
KUBERNETES_COMMANDS = "k8s.io/kubernetes/cmd"
# Of the same release whichever Kubernetes the session asks for: both helms, and the controllers of JobSet and Kubeflow.
OF_THEIR_OWN = {
    "helm": Recipe(module="helm", package="helm.sh/helm/v3/cmd/helm"),
    "helm4": Recipe(module="helm4", package="helm.sh/helm/v4/cmd/helm"),
    "jobset": Recipe(module="jobset", package="sigs.k8s.io/jobset"),
    "training-operator": Recipe(
        module="training-operator", package="github.com/kubeflow/training-operator/cmd/training-operator.v1"
    ),
    "trainer": Recipe(module="trainer", package="github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"),
}


def cached(name: str) -> Path | None:
    """The program, if nothing needs to be built for it. Raises Unavailable for an API server that is too old.

    Raises LookupError where a Kubernetes is asked for that is not pinned.
    """
    asked = asked_for()
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        path = Path(assets) / name
        if os.access(path, os.X_OK) and (not asked or _fits(name, path)):
            _check_age(name, path)
            return path
    path = cache_folder(recipe(name)) / name
    return path if os.access(path, os.X_OK) else _in_path(name)


def program(name: str, say: Say = print) -> Path:
    """The program, built if need be: minutes for the first time. ``say`` is told before and after a build.

    Raises Unavailable, with the sentence for the skip, and BuildFailed.
    """
    if found := cached(name):
        return found
    how = recipe(name)
    go = _go(name)
    folder = cache_folder(how)
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder / "lock", lambda: say(f"{name}: waiting for another process: {_progress(folder)}")):
        return cached(name) or _build(name, how, go, folder, say)


def sources(name: str) -> Path:
    """The module that the program is built from, for the manifests in it. Raises Unavailable."""
    package = recipe(name).package
    argv = [_go(name), "list", "-f", "{{.Module.Dir}}", package]
    done = subprocess.run(
        argv,
        cwd=HERE / recipe(name).module,
        env={**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off"},
        check=False,
        capture_output=True,
        text=True,
        timeout=limit_s(300),
    )
    if done.returncode != 0:
        raise Unavailable(f"no sources of {name} here, and go could not load them (GOPROXY?): {done.stderr[-600:]}")
    return Path(done.stdout.strip())


def can_build() -> bool:
    """Whether a build would be tried here."""
    return shutil.which("go") is not None


def cache_folder(recipe: Recipe, *, modules: Path = HERE) -> Path:
    """Where a program of this module is kept: one folder for one set of sources, flags and processor."""
    module = modules / recipe.module
    parts = [(module / name).read_bytes() for name in ("go.mod", "go.sum")]
    key = hashlib.sha256(b"\0".join([*parts, recipe.ldflags.encode(), platform.machine().encode()])).hexdigest()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "healthd-tests" / key[:16]


def _go(name: str) -> str:
    go = shutil.which("go")
    if go is None:
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        where = f"KUBEBUILDER_ASSETS={assets} does not hold it" if assets else "KUBEBUILDER_ASSETS is not set"
        raise Unavailable(
            f"no {name} here: {where}, and there is no go in PATH to build it with (install Go 1.24 or newer, or let "
            "KUBEBUILDER_ASSETS name a folder with etcd, kube-apiserver and kube-controller-manager)"
        )
    return go


def _in_path(name: str) -> Path | None:
    """The program in PATH, where it is of a version that the tests speak for."""
    found = shutil.which(name)
    return Path(found) if found is not None and _fits(name, Path(found)) else None


def _fits(name: str, path: Path) -> bool:
    """Whether it is of a version that the tests speak for, or of the very one that the session asks for."""
    if name not in IN_PATH:
        return False
    arguments, oldest, beyond = IN_PATH[name]
    if (asked := asked_for()) and name not in OF_THEIR_OWN:
        if name == "etcd":
            return False
        major, minor = _major_minor(asked)
        oldest, beyond = (major, minor), (major, minor + 1)
    done = subprocess.run([path, *arguments], check=False, capture_output=True, text=True, timeout=limit_s(60))
    version = re.search(r"(\d+)\.(\d+)", done.stdout)
    return version is not None and oldest <= (int(version[1]), int(version[2])) < beyond


def _major_minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


def _progress(folder: Path) -> str:
    """What the builder in this folder said last."""
    try:
        return (folder / "progress").read_text(encoding="utf-8")
    except OSError:
        return f"it builds in {folder}"


def _check_age(name: str, path: Path) -> None:
    if name != "kube-apiserver":
        return
    done = subprocess.run([path, "--version"], check=False, capture_output=True, text=True, timeout=limit_s(60))
    version = re.search(r"v(\d+)\.(\d+)", done.stdout)
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        raise Unavailable(
            f"{path} says {done.stdout.strip() or done.stderr.strip()!r}, expected Kubernetes {OLDEST[0]}.{OLDEST[1]} "
            "or newer: install newer assets, or unset KUBEBUILDER_ASSETS and let Go build it"
        )


@contextlib.contextmanager
def _lock(path: Path, waiting: Callable[[], object]) -> Iterator[None]:
    with path.open("w") as file:
        said_s = float("-inf")
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - said_s >= SAYS_EACH_S:
                    said_s = time.monotonic()
                    waiting()
                time.sleep(0.1)
        yield


def _build(name: str, how: Recipe, go: str, folder: Path, say: Say) -> Path:
    say(f"{name}: building {how.package} once, into {folder} (minutes; several for the first program)")
    env = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOWORK": "off"}
    env["GOFLAGS"] = "-mod=readonly -trimpath -buildvcs=false"
    where = HERE / how.module
    started, cpu_before = time.monotonic(), _children_cpu_s()
    packages = _fetch(name, [go, "list", "-deps", how.package], where, env)
    fetched = time.monotonic()
    unfinished = folder / f".{name}.{os.getpid()}"
    argv = [go, "build", "-v", "-ldflags", how.ldflags, "-o", str(unfinished), how.package]

    def tell(compiled: int) -> None:
        words = f"{name}: {compiled} packages compiled of at most {packages}, {time.monotonic() - fetched:.0f} s"
        (folder / "progress").write_text(words, encoding="utf-8")
        say(words)

    try:
        code, errors = _compiled(argv, where, env, tell)
        if code != 0:
            raise BuildFailed(f"{name}: go build ended with {code}:\n{errors[-3000:]}")
        unfinished.replace(folder / name)
    finally:
        unfinished.unlink(missing_ok=True)
        (folder / "progress").unlink(missing_ok=True)
    took = {
        "fetch_s": round(fetched - started, 1),
        "build_s": round(time.monotonic() - fetched, 1),
        "cpu_s": round(_children_cpu_s() - cpu_before, 1),
        "bytes": (folder / name).stat().st_size,
    }
    (folder / f"{name}.json").write_text(json.dumps(took) + "\n", encoding="utf-8")
    say(f"{name}: {took['fetch_s']} s to load the modules, {took['build_s']} s to build, {took['cpu_s']} s of CPU")
    return folder / name


def _compiled(argv: list[str], where: Path, env: dict[str, str], tell: Callable[[int], object]) -> tuple[int, str]:
    """Run a build that names on stderr each package that it compiles, and count them. The exit status, and stderr."""
    messages: list[str] = []
    with subprocess.Popen(argv, cwd=where, env=env, stderr=subprocess.PIPE, text=True) as build:
        late = threading.Timer(BUILD_WITHIN_S, build.kill)
        late.start()
        told_s = time.monotonic()
        try:
            for line in build.stderr or ():
                messages.append(line)
                if time.monotonic() - told_s >= SAYS_EACH_S:
                    told_s = time.monotonic()
                    tell(len(messages))
        finally:
            late.cancel()
    return build.returncode, "".join(messages)


def _fetch(name: str, argv: list[str], where: Path, env: dict[str, str]) -> int:
    """Load the modules, and count the packages. Where they are not here and no proxy has them, nothing is built; that
    is no fault of ours."""
    done = subprocess.run(argv, cwd=where, env=env, check=False, capture_output=True, text=True, timeout=BUILD_WITHIN_S)
    if done.returncode == 0:
        return len(done.stdout.splitlines())
    output = done.stderr.strip()[-2000:]
    if "go.sum" in output or "checksum mismatch" in output or "updates to go.mod needed" in output:
        raise BuildFailed(f"{name}: go.mod and go.sum in {where} do not agree with the sources:\n{output}")
    raise Unavailable(f"no {name} here, and go could not load the modules it is built from (GOPROXY?): {output[-600:]}")


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(names: list[str]) -> int:
    """Build what is named, or what the control plane needs; 1 if something cannot be had."""
    for name in names or CONTROL_PLANE:
        try:
            sys.stdout.write(f"{program(name, lambda text: sys.stderr.write(text + chr(10)))}\n")
        except (LookupError, Unavailable, BuildFailed) as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
