"""Other users' right to write a file that root acts on: sshd's StrictModes, for files that healthd reads, runs,
replaces. Run by path, ``python -I -S strict_modes.py COMMAND…``, it prints why root does not run that command.

Every folder on the way counts, and every link with the folders on its own way: a user who may write one of them can
replace the file at the end.
"""

from __future__ import annotations

import grp
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_LINKS = 40  # as many as the kernel follows (path_resolution(7))
_SYSTEM_GIDS = 100  # groups of the system itself, such as Debian's staff (Debian policy 9.2.2): no user's own
_RUNS_A_FILE = (
    # shells and languages, in any version; and programs that run a program in their arguments
    r"(ba|da|z|k|mk|a)?sh|(python|pypy|perl|ruby|lua|node|php|tclsh|Rscript|gawk|mawk|awk)[0-9.]*"
    r"|env|nice|ionice|timeout|setsid|nohup|stdbuf|flock|taskset|numactl|chrt|sudo|runuser|setpriv|busybox"
)
_SHEBANG_BYTES = 256  # of a first line the kernel reads as much (BINPRM_BUF_SIZE, include/uapi/linux/binfmts.h)


def not_run_by_root(argv: Sequence[str]) -> str:
    """Why root does not run this command of its configuration; "" where it does, or where this is not root.

    Only root may write the program, the script that an interpreter gets, and the interpreter that a script's first line
    names. A program without a folder is searched in root's folders. Its run reports a missing program.
    """
    if os.geteuid() != 0:
        return ""
    for each in _files_of(argv):
        try:
            why = others_may_write(each)
        except OSError as error:
            why = f"{each} cannot be read: {error}"
        if why:
            return f"not run, since {why}: root runs nothing that other users may write; chown root, chmod go-w"
    return ""


def _files_of(argv: Sequence[str]) -> Iterator[Path]:
    """Each file of a command that is run, up to the first that runs no other; the rest is data. A relative path is
    below /, where commands are run."""
    for number, word in enumerate(argv):
        each = Path("/", word)
        if (number or "/" in word) and os.path.isfile(each):
            yield each
            yield from _interpreter_of(each)
        elif number:
            continue
        if not re.fullmatch(_RUNS_A_FILE, each.name):
            return


def _interpreter_of(script: Path) -> Iterator[Path]:
    try:
        with script.open("rb") as file:
            first = file.readline(_SHEBANG_BYTES)
    except OSError:
        return
    words = first[2:].split() if first.startswith(b"#!") else []
    if words and os.path.isfile(words[0]):
        yield Path(os.fsdecode(words[0]))


def others_may_write(path: Path) -> str:
    """The user or group beside root and this process that may change the file at ``path``, as text; "" for none.

    A sticky folder on the way is open to no other user (unlink(2)): a file in it must have an owner that may be
    trusted. No user writes on a file system that is mounted read-only. Raises OSError for a missing path.
    """
    for each, found, is_end in _way(path):
        if why := _opened_by(each, found, is_end=is_end):
            return f"{each} {why}"
    return ""


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Every folder and link that the kernel passes on the way to ``path``, and the file at its end, flagged as the
    end."""
    pending, seen = [Path(os.path.abspath(path))], set[Path]()
    for _ in range(_LINKS):
        if not pending:
            return
        way = pending.pop()
        for each in (*reversed(way.parents), way):
            found = each.lstat()
            if stat.S_ISLNK(found.st_mode):
                pending.append(each.parent / os.readlink(each) / way.relative_to(each))
                yield each, found, False
                break
            if each not in seen:
                seen.add(each)
                yield each, found, each == way
    raise OSError(f"{path}: more than {_LINKS} links on its way")


def _opened_by(path: Path, found: os.stat_result, *, is_end: bool) -> str:
    mode = found.st_mode
    if found.st_uid not in {0, os.geteuid()}:
        why = f"belongs to uid {found.st_uid}"
    elif stat.S_ISLNK(mode) or (mode & stat.S_ISVTX and stat.S_ISDIR(mode) and not is_end):
        return ""
    elif mode & stat.S_IWOTH:
        why = "may be written by every user"
    elif mode & stat.S_IWGRP and not _is_empty(found.st_gid):
        why = f"may be written by the group {found.st_gid}"
    else:
        return ""
    return "" if _is_read_only(path) else why


def _is_empty(gid: int) -> bool:
    """Whether a group has no member but root."""
    if gid >= _SYSTEM_GIDS:
        return False
    try:
        return not set(grp.getgrgid(gid).gr_mem) - {"root"}
    except KeyError:
        return True


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


if __name__ == "__main__":
    sys.stdout.write(not_run_by_root(sys.argv[1:]))
