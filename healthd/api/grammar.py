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
    check.add_argument("--context", choices=CONTEXTS, default="manual", help="who asks; all but manual are audited")
    check.add_argument("--no-daemon", action="store_true", help="look now, without asking the daemon")
    _common(check, json=True, socket=True)

    run = verbs.add_parser("run", help="the daemon")
    _common(run)

    status = verbs.add_parser("status", help="what the daemon sees, decided and does")
    _common(status, json=True, socket=True)

    explain = verbs.add_parser("explain", help="what a finding code or an XID means and calls for")
    explain.add_argument("code", metavar="CODE|XID")
    explain.add_argument("--json", action="store_true", help="as JSON")

    checks = verbs.add_parser("checks", help="the checks that exist, their settings and what they can find")
    _common(checks, json=True)

    config = verbs.add_parser("config", help="show or validate the configuration")
    config.add_argument("what", choices=("show", "validate"))
    _common(config, json=True)

    hook = verbs.add_parser("hook", help="answer a Slurm hook")
    hook.add_argument("kind", choices=("prolog", "epilog", "health-check-program"))
    _common(hook, socket=True)

    demo = verbs.add_parser("demo", help="watch a fault being repaired on a SIMULATED p5.48xlarge")
    demo.add_argument(
        "--fail-provisioner", action="store_true", help="let the reboot fail: the demo must end in failure"
    )
    demo.add_argument("--keep", action="store_true", help="keep the simulated node's folder")
    return top


def _common(parser: argparse.ArgumentParser, *, json: bool = False, socket: bool = False) -> None:
    parser.add_argument("--config", metavar="FILE", help="this configuration only, instead of /etc/healthd")
    if json:
        parser.add_argument("--json", action="store_true", help="as JSON")
    if socket:
        parser.add_argument("--socket", metavar="PATH", help="the daemon's socket (default: $HEALTHD_SOCKET)")
