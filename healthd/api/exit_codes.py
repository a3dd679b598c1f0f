"""The exit code of every command. 0 to 2 are answers; the others are those of sysexits.h, as BSD and mail servers use
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from healthd.core.errors import (
    BackendBusy,
    BackendDenied,
    BackendUnknown,
    ConfigError,
    HealthdError,
    NoDaemon,
    NotPermitted,
    UsageError,
)


class ExitCode(IntEnum):
    """The end of a command; MEANINGS says of which."""

    OK = 0
    NOT_OK = 1
    UNKNOWN = 2
    USAGE = 64
    UNAVAILABLE = 69
    FAILED = 70
    TRY_AGAIN = 75
    NOT_PERMITTED = 77
    CONFIG = 78
    INTERRUPTED = 130


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.OK: "`check`: usable, which is ok or warning. Elsewhere: it worked. `hook`: the job passes",
    ExitCode.NOT_OK: (
        "`check`: critical. `hook prolog`: not fit, and healthd's drain stands. A command: refused. "
        "`drill`: a link is missing. `doctor`: something is missing. `demo`: it failed. "
        "`controller --status`: an operator is needed"
    ),
    ExitCode.UNKNOWN: (
        "`check`: unknown. `doctor`: undecided. `drill`: refused. `fleet`, `case`: they could not be read. "
        "`freeze`: no answer, so read it back. `controller --status`: none leads"
    ),
    ExitCode.USAGE: "the command line is wrong (sysexits.h EX_USAGE), a misspelt `hook` included",
    ExitCode.UNAVAILABLE: "no daemon answers, and this needs one (EX_UNAVAILABLE)",
    ExitCode.FAILED: (
        "it could not be done, such as a state directory that cannot be used, or healthd has a defect and shows its "
        "traceback (EX_SOFTWARE). A daemon that cannot start on this machine as it is now ends so, and systemd starts "
        "it again"
    ),
    ExitCode.TRY_AGAIN: "not now, or no answer, and it may have been done: ask again (EX_TEMPFAIL)",
    ExitCode.NOT_PERMITTED: "this user may not, or healthd's role at the cluster or AWS may not (EX_NOPERM)",
    ExitCode.CONFIG: "the configuration is wrong, whatever machine it is for (EX_CONFIG)",
    ExitCode.INTERRUPTED: "Ctrl-C: 128 and the signal's number, as shells count",
}
"""The rows of the reference."""


def exit_code_of(error: HealthdError) -> ExitCode:
    """The code with which a command ends by an error."""
    match error:
        case UsageError():
            return ExitCode.USAGE
        case ConfigError():
            return ExitCode.CONFIG
        case NoDaemon():
            return ExitCode.UNAVAILABLE
        case NotPermitted() | BackendDenied():
            return ExitCode.NOT_PERMITTED
        case BackendBusy() | BackendUnknown():
            return ExitCode.TRY_AGAIN
        case _:
            return ExitCode.FAILED
