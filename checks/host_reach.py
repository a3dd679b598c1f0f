"""The check ``host.reach``: names that must resolve, ports that must answer, certificates that must be valid."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from healthd.core.check import FindingCode, check, judged, nothing_expected
from healthd.core.errors import SourceError, SourceTimeout, SourceUnreadable
from healthd.core.model import Component, Finding, Remedy, Result, Severity
from healthd.core.node import CommandResult, Node
from healthd.core.setting_types import AbsolutePath, Count

_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_.:-]{0,253})"
_CONNECT = 'exec 3<>"/dev/tcp/$0/$1"'
_DEADLINE_S = 3.0
_NO_ANSWER = f"no answer within {_DEADLINE_S:g} s"
_MOST = 8
_NOT_FOUND, _WILL_EXPIRE = 2, 1
_W, _ASK = Severity.WARNING, Remedy.ASK_HUMAN

NAME = FindingCode(
    code="host.reach.name", severity=_W, remedy=_ASK, meaning="A name does not resolve here", lasting_s=120.0
)
PORT = FindingCode(
    code="host.reach.port", severity=_W, remedy=_ASK, meaning="A port cannot be reached from here", lasting_s=120.0
)
CERTIFICATE = FindingCode(
    code="host.reach.certificate",
    severity=_W,
    remedy=_ASK,
    meaning="A certificate of this node expires soon, or has expired",
)


class HostReachSettings(Struct, frozen=True, kw_only=True):
    """The names, ports and certificates that ``host.reach`` tries. It tries nothing unless you name it."""

    names: tuple[str, ...] = ()
    """Host names that must resolve, through the resolver of this node: ``["fsx.example.com"]``. At most 8."""

    ports: tuple[str, ...] = ()
    """``HOST:PORT`` to which a TCP connection must be possible: ``["slurmctl:6817", "127.0.0.1:22"]``; an IPv6 address
    stands in brackets. The check closes it at once and sends nothing. At most 8."""

    certificates: tuple[AbsolutePath, ...] = ()
    """Files with a certificate in PEM form that must be valid for another ``certificate_days``. At most 8."""

    certificate_days: Count = 7
    """For how many days a certificate must still be valid: time to renew it, weekends included."""

    def __post_init__(self) -> None:
        """Refuse entries that the check cannot try, and more than it has time for."""
        for key in ("names", "ports", "certificates"):
            if len(getattr(self, key)) > _MOST:
                raise ValueError(f"{key}: {len(getattr(self, key))} of them; expected at most {_MOST}")
        for name in self.names:
            if not re.fullmatch(_HOST, name):
                raise ValueError(f"names: {name!r}: expected a host name")
        for text in self.ports:
            host, port = _host_and_port(text)
            if not re.fullmatch(_HOST, host) or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError(f"ports: {text!r}: expected HOST:PORT, such as 127.0.0.1:22 or [::1]:22")


@check("host.reach", interval_s=300, timeout_s=90, settings=HostReachSettings, codes=(NAME, PORT, CERTIFICATE))
def host_reach(node: Node, settings: HostReachSettings) -> Result:
    """Names resolve, ports answer and certificates are valid, as the site requires.

    A command with a deadline of 3 s tries each, so that a resolver or a network that hangs delays nothing else. No
    answer within it is a finding like a refusal: this node cannot reach the target. All are warnings, and none proves
    that this node is at fault: a server that is down looks the same from everywhere.

    Sources: getent(1) (exit status 2: not found); bash(1), redirections to /dev/tcp; openssl-x509(1) ``-checkend``; the
    idea is NHC's, autopilot's and gcm's.
    """
    if not (settings.names or settings.ports or settings.certificates):
        return nothing_expected("no name, port or certificate is configured")
    findings, undecided = list[Finding](), list[str]()
    tries = (
        *((_name, name) for name in settings.names),
        *((_port, text) for text in settings.ports),
        *((_certificate, path) for path in settings.certificates),
    )
    for attempt, what in tries:
        try:
            findings.extend(attempt(node, what, settings))
        except SourceError as error:
            undecided.append(f"{what}: {error}")
    return judged(findings, undecided=undecided)


def _name(node: Node, name: str, _settings: HostReachSettings) -> Iterator[Finding]:
    answer = _answer(node, "getent", "ahosts", name)
    if answer is None or answer.code == _NOT_FOUND:
        reason = _NO_ANSWER if answer is None else "not found"
        yield NAME.at(Component(kind="name", id=name), f"{name} does not resolve: {reason}")
    elif answer.code != 0:
        raise _odd(answer)


def _port(node: Node, text: str, _settings: HostReachSettings) -> Iterator[Finding]:
    answer = _answer(node, "bash", "-c", _CONNECT, *_host_and_port(text))
    if answer is None or answer.code != 0:
        reason = _NO_ANSWER if answer is None else answer.stderr.strip().rpartition(": ")[2][:120]
        yield PORT.at(Component(kind="port", id=text), f"cannot connect to {text}: {reason}")


def _answer(node: Node, *argv: str) -> CommandResult | None:
    """The result of a command; None where it did not end in time. Raises SourceUnreadable for one that was killed."""
    try:
        answer = node.command(*argv, timeout_s=_DEADLINE_S)
    except SourceTimeout:
        return None
    if answer.code < 0:
        raise _odd(answer)
    return answer


def _certificate(node: Node, path: str, settings: HostReachSettings) -> Iterator[Finding]:
    seconds = settings.certificate_days * 86400
    command = ("openssl", "x509", "-checkend", str(seconds), "-noout", "-enddate", "-in", path)
    answer = node.command(*command, timeout_s=_DEADLINE_S)
    end = answer.stdout.partition("notAfter=")[2].partition("\n")[0]
    if answer.code == _WILL_EXPIRE and end:
        message = f"{path} is valid until {end}, for less than {settings.certificate_days} days; renew it"
        yield CERTIFICATE.at(Component(kind="file", id=path), message, end=end, limit_days=settings.certificate_days)
    elif answer.code != 0:
        raise _odd(answer)


def _host_and_port(text: str) -> tuple[str, str]:
    """Host and port of ``[::1]:22`` or ``host:22``."""
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def _odd(answer: CommandResult) -> SourceUnreadable:
    output = (answer.stderr or answer.stdout).strip()[:200]
    return SourceUnreadable(f"{answer.argv[0]}: exit {answer.code}: {output}")
