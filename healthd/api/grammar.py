"""The grammar of the command line: the one place that knows verbs and options. It parses, and nothing else.

The daemon parses with it too: its clients send their arguments as they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from healthd import __version__
from healthd.errors import UsageError

CONTEXTS = ("manual", "prolog", "epilog", "boot")


class Shown(Exception):
    """The command line asks for a text, not for work: --help and --version end the parse with one. No error."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting: only ``output`` ends the process, and the daemon must not.

    Options are not abbreviated: the hot path looks for ``--config`` and its like word by word, and must not miss one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise Shown(message or "")

    def print_help(self, file: object = None) -> None:
        raise Shown(self.format_help())


class _Version(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        raise Shown(f"healthd {__version__}\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; ``verb`` names its module. Raises UsageError; Shown for --help, --version."""
    return _grammar().parse_args(arguments)


def _grammar() -> _Parser:
    top = _Parser(prog="healthd", description="Node health checks and remediation for GPU clusters.")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)

    check = verbs.add_parser("check", help="the verdict of this node for a job, now")
    check.add_argument("names", nargs="*", metavar="NAME", help="only these checks (default: all)")
    check.add_argument(
        "--context", choices=CONTEXTS, default="manual", help="who asks; all but manual are audited; boot is --active"
    )
    check.add_argument("--active", action="store_true", help="also test what needs an idle node: NCCL, GDRCopy")
    check.add_argument("--no-daemon", action="store_true", help="look now, without asking the daemon")
    _common(check, json=True, socket=True)

    run = verbs.add_parser("run", help="the daemon")
    _common(run)

    status = verbs.add_parser("status", help="what the daemon sees, decided and does")
    _common(status, json=True, socket=True)

    relearn = verbs.add_parser("relearn", help="forget what checks learned on this instance: what is there is right")
    relearn.add_argument("names", nargs="*", metavar="NAME", help="only of these checks (default: all that learn)")
    relearn.add_argument("--reason", metavar="TEXT", required=True, help="why, for the audit trail")
    how = relearn.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask")
    how.add_argument("--dry-run", action="store_true", help="only say what would be forgotten")
    relearn.add_argument("--socket", metavar="PATH", help="the daemon's socket (default: $HEALTHD_SOCKET)")

    explain = verbs.add_parser("explain", help="what a finding code or an XID means and calls for")
    explain.add_argument("code", metavar="CODE|XID")
    explain.add_argument("--json", action="store_true", help="as JSON")

    checks = verbs.add_parser("checks", help="the checks that exist, their settings and what they can find")
    _common(checks, json=True)

    config = verbs.add_parser("config", help="show or validate the configuration")
    config.add_argument("what", choices=("show", "validate"))
    _common(config, json=True)

    policy = verbs.add_parser("policy", help="what is done about which fault, and why")
    policy.add_argument("what", choices=("show", "test"))
    policy.add_argument("args", nargs="*", metavar="CODE|FILE", help="for test: finding codes, XIDs, or log files")
    _trying(policy)
    _common(policy, json=True)

    replay = verbs.add_parser("replay", help="what would have been found, decided and done on past logs")
    replay.add_argument("files", nargs="+", metavar="FILE", help="kernel logs, journals, syslogs, .gz; healthd.db")
    _trying(replay)
    replay.add_argument("--mode", choices=("observe", "quarantine", "repair"), default="repair", help="default: repair")
    replay.add_argument("--nodes", type=int, default=0, metavar="N", help="nodes in the fleet; applies the budget")
    _common(replay, json=True)

    hook = verbs.add_parser("hook", help="answer a Slurm hook")
    hook.add_argument("kind", choices=("prolog", "epilog", "health-check-program"))
    _common(hook, socket=True)

    demo = verbs.add_parser("demo", help="watch a fault being repaired on a SIMULATED p5.48xlarge")
    demo.add_argument(
        "--fail-provisioner", action="store_true", help="let the reboot fail: the demo must end in failure"
    )
    demo.add_argument("--keep", action="store_true", help="keep the simulated node's folder")
    return top


def _trying(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", metavar="NAME|FILE", default="", help="this policy instead of the configured one")
    parser.add_argument("--instance-type", metavar="TYPE", default="", help="as on this EC2 instance type")


def _common(parser: argparse.ArgumentParser, *, json: bool = False, socket: bool = False) -> None:
    parser.add_argument("--config", metavar="FILE", help="this configuration only, instead of /etc/healthd")
    if json:
        parser.add_argument("--json", action="store_true", help="as JSON")
    if socket:
        parser.add_argument("--socket", metavar="PATH", help="the daemon's socket (default: $HEALTHD_SOCKET)")
