"""Slurm's clients with something between them and the daemon: a kill -9, or an admin, at a chosen call.

The daemon is told a ``bin_dir`` that holds these wrappers. Nothing in healthd knows of them: the boundary is where it
really is, between the daemon and the programs that it runs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

_WRAPPER = """#!/bin/sh
# counts the calls of one daemon; acts before or after the one that was chosen
case "$*" in *" extra="*|*"-O Extra:"*) exec {real} "$@";; esac # the summary, which comes by its own clock
here={folder}
exec 9>"$here/lock"; flock 9
read -r count <"$here/count"; count=$((count + 1)); echo $count >"$here/count"
echo "$count {tool} $*" >>"$here/calls"
exec 9>&-
read -r at <"$here/at"; act() {{ . "$here/act"; : >"$here/acted"; }}
[ "$at" = "$count before" ] && act
IFS= read -r match <"$here/match"; [ -n "$match" ] && case "$*" in *"$match"*) : >"$here/match"; act;; esac
{real} "$@"
code=$?
[ "$at" = "$count after" ] && act
exit $code
"""


class Interposed:
    """Wrappers for one daemon in ``folder``. ``act`` is shell text; ``$PPID`` in it is the daemon."""

    def __init__(self, folder: Path, act: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        (folder / "act").write_text(act + "\n")
        (folder / "count").write_text("0\n")
        (folder / "match").write_text("")
        self.at(0, "never")
        for tool in ("scontrol", "sinfo", "squeue", "scancel"):
            real = shutil.which(tool, path="/usr/bin:/usr/local/bin:/opt/slurm/bin")
            wrapper = folder / tool
            wrapper.write_text(_WRAPPER.format(folder=folder, tool=tool, real=real))
            wrapper.chmod(0o755)

    def at(self, call: int, when: str) -> None:
        """Choose the boundary: ``before`` or ``after`` the call with this number, counted from 1."""
        (self.folder / "at").write_text(f"{call} {when}\n")

    def before(self, words: str) -> None:
        """Choose the boundary before the first call that has these words in it."""
        (self.folder / "match").write_text(words)

    def calls(self) -> list[str]:
        """Every call so far, as ``tool arguments``, in order."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.partition(" ")[2] for line in lines]

    def acted(self) -> bool:
        """Whether the chosen boundary was reached, and what was to happen there is done."""
        return (self.folder / "acted").exists()
