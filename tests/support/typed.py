"""A line of a page, typed into a shell with the healthd of this checkout."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.limits import limit_s
from tests.support.pages import ROOT


def typed(line: str, folder: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The result of one line in this folder, which gets the program. A daemon that it leaves in the background goes on,
    and is not waited for: standard error goes into ``typed.err`` there."""
    program = folder / "healthd"
    if not program.exists():  # a shell that a line before left in the background may be about to read it
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m healthd "$@"\n')
        program.chmod(0o755)
    path = os.pathsep.join([str(folder), environ.get("PATH", os.environ["PATH"])])
    own = {**environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    with (folder / "typed.err").open("w+") as errors:
        done = subprocess.run(
            ["sh", "-c", line], cwd=folder, env=own, check=False, stdout=subprocess.PIPE, stderr=errors, text=True,
            timeout=limit_s(60),
        )  # fmt: skip
        errors.seek(0)
        done.stderr = errors.read()
    return done
