"""Runs a Dockerfile's steps in folders of this machine, by chroot, where no container engine is at hand.

It knows the instructions that packaging/container/Dockerfile uses and refuses every other. A stage is a copy of its
base's files; a RUN step gets namespaces of its own for mounts, processes and names, /proc, /sys, a small /dev and an
empty /run and /tmp, so that what is mounted for it cannot stay in the image. It needs root.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from tests.support.limits import limit_s

ROOT = Path(__file__).parents[2]
_WORD = re.compile(r"([A-Za-z]+)\s+(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
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


class StepFailed(AssertionError):
    """A step ended with another status than 0. The message holds the step and the end of what it said."""


class Instruction(Struct, frozen=True, kw_only=True):
    """One instruction with its line in the file: ``word`` in capitals, ``rest`` with continued lines joined."""

    word: str
    rest: str
    line: int


class Stage(Struct, kw_only=True):
    """What a stage has become: the folder of its files, and how a container of it starts."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def instructions(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile, without comments. Raises ValueError for a line that is none."""
    found: list[Instruction] = []
    parts: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not parts and not line.strip()):
            continue
        start = start if parts else number
        parts.append(line.strip().removesuffix("\\").rstrip())
        if not line.rstrip().endswith("\\"):
            match = _WORD.fullmatch(" ".join(parts))
            if match is None:
                raise ValueError(f"line {start}: {parts[0]!r} is no instruction")
            found.append(Instruction(word=match[1].upper(), rest=match[2], line=start))
            parts = []
    return found


def context(root: Path, ignore: str, into: Path) -> None:
    """Copy what a .dockerignore lets through: the last pattern that fits a path, or a folder above it, decides."""
    rules = [line.strip() for line in ignore.splitlines() if line.strip() and not line.startswith("#")]
    for folder, folders, names in os.walk(root):
        here = Path(folder).relative_to(root)
        folders[:] = [name for name in folders if (here / name).parts[0] not in (".git", ".venv", "build", "dist")]
        for name in [*names, *(each for each in folders if (root / here / each).is_symlink())]:
            path = here / name
            if not _ignored(path, rules):
                (into / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / path, into / path, follow_symlinks=False)


def _ignored(path: Path, rules: list[str]) -> bool:
    ignored = False
    chain = [path.as_posix(), *(parent.as_posix() for parent in path.parents if parent != Path())]
    for rule in rules:
        pattern = rule.removeprefix("!").rstrip("/")
        if any(_fits(each, pattern) for each in chain):
            ignored = not rule.startswith("!")
    return ignored


def _fits(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch.fnmatchcase(path.rpartition("/")[2], pattern.removeprefix("**/"))
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


class Build:
    """Builds all stages of one Dockerfile below ``folder``. ``base``: the files that stand for every outside image.

    ``arguments``: as --build-arg. ``machine``: variables by which this machine reaches package servers, and ``binds``,
    ``from:to`` paths that they name; they are there while a step runs, and in no image.
    """

    def __init__(
        self,
        folder: Path,
        *,
        base: Path,
        context: Path,
        arguments: Mapping[str, str],
        machine: Mapping[str, str],
        binds: tuple[str, ...] = (),
    ) -> None:
        self._folder, self._base, self._context = folder, base, context
        self._arguments, self._machine, self._binds = arguments, machine, binds
        self.stages: list[Stage] = []
        self._named: dict[str, Stage] = {}

    def run(self, text: str) -> Stage:
        """Build every stage; the last one is the image. Raises StepFailed."""
        given: dict[str, str] = {}
        for step in instructions(text):
            if step.word == "ARG":
                name, equals, value = step.rest.partition("=")
                assert equals or name in self._arguments, f"line {step.line}: ARG {name} has no value"
                given[name] = self._arguments.get(name, value)
            elif step.word == "FROM":
                self._begin(step, given)
            else:
                self._apply(self.stages[-1], step)
        return self.stages[-1]

    def start(
        self,
        stage: Stage,
        *argv: str,
        user: str = "",
        binds: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        restricted: bool = False,
    ) -> list[str]:
        """The command that runs ``argv`` as a container of this stage would, as ``user`` or the stage's own.

        ``restricted``: with CAP_SYSLOG alone, in a network of its own, on a file system that cannot be written.
        """
        uid, _, gid = (user or stage.user).partition(":")
        drop = ["setpriv", f"--reuid={uid}", f"--regid={gid or uid}", "--clear-groups"]
        drop += ["--bounding-set=-all,+syslog", "--inh-caps=-all", "--no-new-privs"] if restricted else []
        given = [f"{name}={value}" for name, value in {"HOME": "/", **stage.env, **(environ or {})}.items()]
        inside = f'cd "{stage.workdir}" && exec "$@"'
        chroot = ["chroot", str(stage.root), *drop, "/bin/sh", "-c", inside, "sh", *argv]
        return [*self._namespaces(stage, binds, restricted=restricted), *given, *chroot]

    def _namespaces(self, stage: Stage, binds: tuple[str, ...], *, restricted: bool = False) -> list[str]:
        unshare = ["unshare", "--mount", "--pid", "--fork", "--ipc", "--uts", "--kill-child"]
        unshare += ["--net"] if restricted else []
        given = [f"BINDS={' '.join(binds)}", f"RESTRICT={'1' if restricted else ''}"]
        return ["env", *given, *unshare, "sh", "-c", _PREPARE, "sh", str(stage.root)]

    # -----------------------------------------------------------------------------------------------------------------

    def _begin(self, step: Instruction, given: Mapping[str, str]) -> None:
        source, _, name = re.sub(r"\s+[Aa][Ss]\s+", " ", step.rest).partition(" ")
        parent = self._named.get(_substituted(source, given, step))
        root = self._folder / (name or "image")
        _copy(parent.root if parent else self._base, root)
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        stage = Stage(root=root, env=dict(parent.env) if parent else {"PATH": path})
        if parent:
            stage.workdir, stage.user = parent.workdir, parent.user
        self.stages.append(stage)
        self._named[name] = stage

    def _apply(self, stage: Stage, step: Instruction) -> None:
        match step.word:
            case "RUN":
                self._step(stage, step)
            case "COPY":
                self._copied(stage, step)
            case "ENV":
                pairs = (pair.partition("=") for pair in step.rest.split())
                stage.env |= {name: _substituted(value, stage.env, step) for name, _, value in pairs}
            case "WORKDIR":
                stage.workdir = step.rest
                (stage.root / step.rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                stage.user = step.rest
            case "ENTRYPOINT":
                stage.entrypoint = tuple(json.loads(step.rest))
            case "CMD":
                stage.command = tuple(json.loads(step.rest))
            case "LABEL":
                pass
            case word:
                raise ValueError(f"line {step.line}: {word} is not known here: teach tests/packaging/dockerfile.py")

    def _step(self, stage: Stage, step: Instruction) -> None:
        assert stage.user == "0:0", f"line {step.line}: RUN after USER is not known here"
        environ = [f"{name}={value}" for name, value in {"HOME": "/root", **stage.env, **self._machine}.items()]
        inside = f'cd "{stage.workdir}" && {step.rest}'
        argv = [*self._namespaces(stage, self._binds), *environ, "chroot", str(stage.root), "/bin/sh", "-c", inside]
        done = subprocess.run(argv, check=False, capture_output=True, text=True, errors="replace", timeout=1800)
        if done.returncode != 0:
            output = (done.stdout + done.stderr)[-3000:]
            raise StepFailed(f"line {step.line}: RUN {step.rest[:200]}: exit {done.returncode}:\n{output}")

    def _copied(self, stage: Stage, step: Instruction) -> None:
        words = step.rest.split()
        source = self._context
        if words[0].startswith("--from="):
            source = self._named[words.pop(0).removeprefix("--from=")].root
        *names, last = words
        target = stage.root / (last if last.startswith("/") else f"{stage.workdir}/{last}").lstrip("/")
        for name in names:
            path = source / name.lstrip("/")
            if path.is_dir():
                _copy(path, target)
            else:
                into = target / path.name if last.endswith(("/", ".")) or len(names) > 1 else target
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, into)


class Image(Struct, frozen=True, kw_only=True):
    """An image that was built: its last stage, and what runs a program in it."""

    build: Build
    stage: Stage

    def run(self, *argv: str, user: str = "", binds: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """A program as a container of this image, to its end."""
        command = self.build.start(self.stage, *argv, user=user, binds=binds)
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit_s(90))


@contextlib.contextmanager
def built_image(text: str, base: Path, folder: Path) -> Iterator[Image]:
    """The image of this checkout by a Dockerfile, on the files of ``base``; below ``folder``, which goes in the end."""
    sources = folder / "context"
    context(ROOT, (ROOT / ".dockerignore").read_text(encoding="utf-8"), sources)
    machine, binds = machine_access()
    arguments = {"BASE": "debian"}
    build = Build(folder / "stages", base=base, context=sources, arguments=arguments, machine=machine, binds=binds)
    try:
        yield Image(build=build, stage=build.run(text))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _substituted(text: str, values: Mapping[str, str], step: Instruction) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        assert values.get(name), f"line {step.line}: {name} is not set"
        return values[name]

    return _VARIABLE.sub(value, text)


def _copy(source: Path, target: Path) -> None:
    """The contents of a folder, owned by root, links as links."""
    target.mkdir(parents=True, exist_ok=True)
    argv = ["cp", "-dR", "--preserve=mode,timestamps,links", "--reflink=auto", f"{source}/.", str(target)]
    subprocess.run(argv, check=True, timeout=600)


def machine_access() -> tuple[dict[str, str], tuple[str, ...]]:
    """How this machine reaches package servers: variables for a step, and the files that they name as binds."""
    wanted = re.compile(r"(https?|no|ftp|all)_proxy|PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT)", re.I)
    environ = {name: value for name, value in os.environ.items() if wanted.fullmatch(name)}
    bundle = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    if not bundle or not Path(bundle).exists():
        return environ, ()
    inside = "/run/machine-ca.crt"
    return {**environ, "PIP_CERT": inside}, (f"{bundle}:{inside}",)


def files_of(root: Path, *patterns: str) -> Iterator[Path]:
    """Files below ``root`` whose name fits one of the patterns, links included."""
    for folder, _, names in os.walk(root):
        yield from (Path(folder) / name for name in names if any(fnmatch.fnmatchcase(name, each) for each in patterns))
