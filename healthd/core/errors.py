"""The exception tree of healthd.

    HealthdError
    ├── UsageError            the command line asks for something that is not there    exit 64
    ├── NoDaemon              no daemon answers, and this needs one                    exit 69
    ├── NotPermitted          the caller of a command may not do this                  exit 77
    ├── ConfigError           the configuration cannot be used; carries every problem  exit 78
    │   └── ExtraMissing      it asks for a part of healthd whose packages are not installed
    ├── StartError            a service cannot start on this machine as it is now      exit 70
    ├── RegistrationError     two checks, or two codes, claim one name
    ├── SourceError           the machine did not answer: the check's outcome is *unknown*
    │   ├── SourceMissing     the file, tool or library is not there
    │   ├── SourceTimeout     no answer before the deadline; the request may still be running
    │   ├── SourceBusy        an earlier request is not answered yet, or the source is paused: no request was sent
    │   └── SourceUnreadable  there was an answer, and it makes no sense or was an error
    ├── BackendError          an orchestrator or a provisioner did not carry out a request
    │   ├── BackendRefused    it refused: nothing was applied
    │   │   ├── SlotTaken     another node holds this slot of the budget
    │   │   ├── BackendBusy   not now (throttled, no capacity, another operation): ask again later
    │   │   └── BackendDenied the caller's role may not do this
    │   └── BackendUnknown    no answer: the request may have been applied
    └── StoreError            the state on disk could not be read or written

A message says what, where, the value, what was expected, and the next step.
"""

from __future__ import annotations


class HealthdError(Exception):
    """Root of everything healthd raises on purpose."""


class UsageError(HealthdError):
    """The command line names something that does not exist."""


class NoDaemon(HealthdError):
    """No daemon answers at the socket, and what was asked for needs one."""


class NotPermitted(HealthdError):
    """The user of a command may not give it. Of a backend that refuses healthd itself: BackendDenied."""


class ConfigError(HealthdError):
    """The configuration cannot be used.

    ``problems`` holds one rendered line per mistake: all of them, not the first.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ExtraMissing(ConfigError):
    """The configured ``what`` needs the extra ``kubernetes`` of healthd, and ``error`` names the package that is not
    installed.

    The message names no distribution: none called healthd is published, so the next owner of that name would run as
    root.
    """

    def __init__(self, what: str, error: ImportError) -> None:
        way = "build the package with LOCK=requirements/kubernetes.txt, or install the wheel's file with its extra"
        super().__init__((f"{what} needs packages that are not installed: {error}; {way}, healthd-….whl[kubernetes]",))


class StartError(HealthdError):
    """A service cannot start on this machine as it is now. The next start may find it otherwise: a file, a group or a
    cluster that is not there yet, a full disk."""


class RegistrationError(HealthdError):
    """Two checks, or two finding codes, claim one name."""


class SourceError(HealthdError):
    """The machine did not answer a request. Never evidence of a fault by itself.

    ``do``: the operator's next step about a check that is unknown for it; "" where `healthd doctor` finds it.
    """

    do = ""


class SourceMissing(SourceError):
    """The file, tool or library that would answer is not there."""


class SourceTimeout(SourceError):
    """No answer before the deadline. The request may still be running somewhere."""

    do = "find what hangs: state D in `ps -eo pid,stat,wchan,args`, and the kernel log, `journalctl -k`"


class SourceBusy(SourceError):
    """Not asked: an earlier request is not answered yet, or the source is paused."""

    do = "run `healthd check` again once that is over"


class SourceUnreadable(SourceError):
    """An answer came, but it was an error or could not be understood."""


class BackendError(HealthdError):
    """An orchestrator or a provisioner did not carry out a request."""


class BackendRefused(BackendError):
    """The request was refused: nothing was applied."""


class SlotTaken(BackendRefused):
    """The slot has a holder. Read the slots again and choose another."""


class BackendBusy(BackendRefused):
    """Not now, and nothing was applied: throttled, no capacity, or something else in progress. Ask again later."""


class BackendHalfDone(BackendBusy):
    """An act is half done, and its rest has to be tried until it succeeds: only its end ends the wait."""


class BackendDenied(BackendRefused):
    """The caller has no credentials, or not the right. The message names the missing IAM action."""


class BackendUnknown(BackendError):
    """No answer: the request may have been applied. Read back before anything else."""


class StoreError(HealthdError):
    """The state on disk could not be read or written."""
