"""Forty mistyped commands and forty wrong configurations, and what healthd answers.

The page of the reference is made of them (docs/generate.py), so that an answer which changes is seen.

Each is answered here, without a daemon and without a look at this machine.
"""

from __future__ import annotations

import importlib
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from healthd.api.grammar import TextRequested, parse
from healthd.api.wire import Reply, failure
from healthd.cli.settings import check_settings
from healthd.config.load import examine
from healthd.core.errors import HealthdError

COMMANDS = (
    "chekc",
    "stauts",
    "drain",
    "fleets",
    "quarentine --reason x",
    "help statsu",
    "check gpu.ecc --jsno",
    "check --contxt prolog",
    "check --context prologue",
    "check --no-deamon",
    "check --config",
    "status --wacth",
    "status --every fast",
    "status --every 0.1",
    "history --last 0",
    "history --last all",
    "history --lats 5",
    "ack gpu.ecc",
    "ack gpu.ecc --for 7days --reason known",
    "ack gpu.ecc --for 90min --reason known",
    "ack gpu.ecc --for 7 --reason known",
    "ack gpu.ecc --for 2y --reason known",
    "ack gpu.ecc --for 7d --reason ' '",
    "quarantine",
    "quarantine --reason",
    "repair --step restart",
    "repair --yes --dry-run",
    "release --reson fixed",
    "approve",
    "undo c1",
    "freeze --for tomorrow",
    "fleet --state repairng",
    "fleet --by racks",
    "explain gpu.xdi.79",
    "explain 7x9",
    "explain efa.counters.keepalive",
    "config chekc",
    "policy shwo",
    "policy test gpu.xid.79 --polcy conservative",
    "hook epilogue",
)
"""As they are typed after ``healthd``."""

CONFIGURATIONS = (
    '[remediation]\nmode = "repiar"',
    '[remediation]\nmod = "repair"',
    '[remediatoin]\nmode = "repair"',
    "[remediation]\nmode = repair",
    "[remediation]\nsettle_s = -1",
    '[remediation]\nsettle_s = "5m"',
    "[remediation]\nsettle_s = true",
    'mode = "repair"',
    "[budget]\nmax_out = -3",
    '[budget]\nmax_out = "5%%"',
    '[budget]\nmax_out = "five"',
    "[budget]\nmax_out = 1.5",
    "[budget]\nmaxout = 3",
    '[orchestrator]\nkind = "slrum"',
    "[orchestrator]\nkind = 1",
    "[orchestrator.slurm]\ntimeout_s = 0",
    '[orchestrator.slurm]\nbin_dir = "relative/bin"',
    '[provisioner]\nkind = "hyperpods"',
    '[provisioner.local]\nreboot_command = "reboot"',
    "[provisioner.local]\nreboot_command = [1]",
    '[checks."gpu.ecc"]\nenabeld = false',
    '[checks."gpu.ecc"]\nenabled = "no"',
    '[checks."gpu.eccs"]\nenabled = false',
    '[checks."gpu.ecc"]\ninterval_s = 0',
    "[checks.gpu.ecc]\nenabled = false",
    '[checks."disk.space"]\nwarning = 95',
    '[daemon]\nhttp = "9910"',
    '[daemon]\nhttp = "0.0.0.0:99999"',
    '[daemon]\nsocket = "run/healthd.sock"',
    '[daemon]\nsocket = ""',
    "[daemon]\nstate_dir = 7",
    '[node]\nname = "gpu 7"',
    '[sources]\nproc_root = "proc"',
    "[[match]]\ninstance_type = 5",
    '[[match]]\nparttion = "train"',
    '[match]\npartition = "train"',
    '[notify.webhook]\nurl = "htps://example.com/hook"',
    "[policy]\ncanary = 3",
    '[remediation]\nmode = "observe"\n[remediation]\nmode = "repair"',
    "[remediation\nmode = 1",
)
"""Each a whole file."""


def answered_commands() -> Iterator[tuple[str, Reply]]:
    """Each command and its reply."""
    return ((f"healthd {line}", _answered(line)) for line in COMMANDS)


def answered_configurations() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each configuration and the problems that are found in it, the file's folder left out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        for text in CONFIGURATIONS:
            path.write_text(text + "\n")
            found = examine(path, checks=check_settings(), environ={})
            yield text, tuple(str(each).replace(f"{folder}/", "") for each in found.problems)


def _answered(line: str) -> Reply:
    try:
        options = parse(shlex.split(line))
        module = importlib.import_module(f"healthd.cli.{options.module or options.verb.replace('-', '_')}")
        reply: Reply = module.answer(options)
    except TextRequested as shown:
        return Reply(code=0, out=str(shown))
    except HealthdError as error:
        return failure(error)
    return reply
