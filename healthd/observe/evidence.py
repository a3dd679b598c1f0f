"""Saves the state of a node before a repair changes it: one folder per remediation, within one deadline.

The folder shows later why healthd gave a machine away: the verdict and the audit trail, the kernel log, and the
driver's own report. healthd tries every part, and names those that fail; commands run side by side, so that one that
hangs delays no other. It must not decide whether the repair goes on.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from healthd.core.errors import HealthdError, SourceError, SourceMissing, StoreError
from healthd.sources.command import run_configured

BUNDLE = "{bundle}"
"""Stands for the folder in an argument of a command."""

_OUTPUT_BYTES = 16 * 1024 * 1024


def save_bundle(
    folder: Path,
    parts: Mapping[str, Callable[[], str]],
    commands: Sequence[Sequence[str]],
    *,
    timeout_s: float,
    keep: int,
) -> str:
    """Fill ``folder`` and return a line with its path and the parts that are missing.

    ``parts``: file name to the function that makes its text. ``commands``: argument lists; the output of each becomes a
    file with its tool's name, numbered where that is taken, and ``BUNDLE`` in an argument is the folder. ``timeout_s``:
    for all commands together, in seconds. ``keep``: how many bundles stay in the folder's parent, this one included;
    the oldest go first. Raises StoreError where the folder itself cannot be made.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        _forget_oldest(folder, keep)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}; check [daemon] state_dir") from error
    missing = [f"{name}: {why}" for name, make in parts.items() if (why := _saved(folder / name, make))]
    with ThreadPoolExecutor(max_workers=max(1, len(commands))) as pool:
        jobs = [
            (name, pool.submit(_ran, folder / f"{name}.txt", command, timeout_s))
            for name, command in _named(commands, taken=parts)
        ]
    missing += [f"{name}: {why}" for name, job in jobs if (why := job.result())]
    return f"{folder}; without {'; '.join(missing)}" if missing else str(folder)


def _saved(path: Path, make: Callable[[], str]) -> str:
    """Write one part; return the reason of a failure, or ""."""
    try:
        path.write_text(make(), encoding="utf-8", errors="backslashreplace")
    except (HealthdError, OSError) as error:
        return str(error)
    return ""


def _named(commands: Sequence[Sequence[str]], *, taken: Container[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Each command with the first free name of ``nvidia-smi``, ``nvidia-smi-2``, …"""
    given: set[str] = set()
    for command in commands:
        tool = Path(command[0]).name
        names = itertools.chain([tool], (f"{tool}-{number}" for number in itertools.count(2)))
        name = next(each for each in names if f"{each}.txt" not in taken and each not in given)
        given.add(name)
        yield name, command


def _ran(path: Path, command: Sequence[str], timeout_s: float) -> str:
    """Run one command and save its output; return the reason of a failure, or ""."""
    argv = [word.replace(BUNDLE, str(path.parent)) for word in command]
    try:
        result = run_configured(argv, timeout_s=timeout_s, limit_bytes=_OUTPUT_BYTES, leave_nothing=True)
    except SourceMissing:
        return "not installed"
    except SourceError as error:
        return str(error)
    printed = result.stdout + result.stderr
    wrong = _saved(path, lambda: printed)
    return wrong or (f"exit status {result.code}: {printed.strip()[-200:]}" if result.code else "")


def _forget_oldest(folder: Path, keep: int) -> None:
    others = [each for each in folder.parent.iterdir() if each != folder and each.is_dir()]
    others.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    for old in others[max(0, keep - 1) :]:
        shutil.rmtree(old)
