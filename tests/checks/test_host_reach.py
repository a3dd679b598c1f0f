"""host.reach: what the commands' answers mean, and the commands themselves on the loopback."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from healthd.checks.host_reach import HostReachSettings, host_reach
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout
from healthd.core.model import Result, Severity, Status
from healthd.core.node import CommandResult
from healthd.sources.command import run_command
from healthd.testing import FakeNode

GETENT = ("getent", "ahosts", "fs.example")
CONNECT = ("bash", "-c", 'exec 3<>"/dev/tcp/$0/$1"', "10.0.0.1", "6817")
OPENSSL = ("openssl", "x509", "-checkend", "604800", "-noout", "-enddate", "-in", "/etc/site.pem")
REFUSED = "10.0.0.1: connect: Connection refused\n10.0.0.1: line 1: /dev/tcp/10.0.0.1/6817: Connection refused"


def answered(code: int, stdout: str = "", stderr: str = "") -> CommandResult:
    return CommandResult(argv=("x",), code=code, stdout=stdout, stderr=stderr, duration_s=0.01)


def run(answers: Mapping[tuple[str, ...], CommandResult | SourceError], **settings: Any) -> Result:
    return host_reach(FakeNode(commands=answers), HostReachSettings(**settings))


class RealNode(FakeNode):
    """Commands are run, on this machine."""

    def command(self, *argv: str, timeout_s: float = 5.0) -> CommandResult:
        return run_command(argv, timeout_s=timeout_s)


def test_nothing_is_tried_unless_it_is_named() -> None:
    """Without configuration no command runs."""
    assert run({}).status is Status.NOT_APPLICABLE


def test_all_that_is_named_is_there() -> None:
    """A name with an address, a port that takes a connection, a certificate that holds."""
    answers = {
        GETENT: answered(0, "10.0.0.9 STREAM fs.example"),
        CONNECT: answered(0),
        OPENSSL: answered(0, "notAfter=x"),
    }
    result = run(answers, names=("fs.example",), ports=("10.0.0.1:6817",), certificates=("/etc/site.pem",))
    assert (result.status, result.findings) == (Status.OK, ())


@pytest.mark.parametrize("answer", [answered(2), SourceTimeout("no end within 3 s")])
def test_a_name_that_does_not_resolve(answer: CommandResult | SourceError) -> None:
    """Not found, and no answer in time, are findings of the name, as warnings."""
    (finding,) = run({GETENT: answer}, names=("fs.example",)).findings
    assert (finding.code, str(finding.component), finding.severity) == (
        "host.reach.name",
        "name:fs.example",
        Severity.WARNING,
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [(answered(1, stderr=REFUSED), "Connection refused"), (SourceTimeout("x"), "no answer within 3 s")],
)
def test_a_port_that_cannot_be_reached(answer: CommandResult | SourceError, words: str) -> None:
    """Refused, and no answer in time, are findings of the port that say which."""
    (finding,) = run({CONNECT: answer}, ports=("10.0.0.1:6817",)).findings
    assert (finding.code, str(finding.component)) == ("host.reach.port", "port:10.0.0.1:6817")
    assert words in finding.message


@pytest.mark.parametrize("argv", [GETENT, CONNECT])
def test_a_command_that_was_killed_is_unknown(argv: tuple[str, ...]) -> None:
    """A shell that memory ran out for tried no port."""
    asked = {"names": ("fs.example",)} if argv is GETENT else {"ports": ("10.0.0.1:6817",)}
    assert run({argv: answered(-9)}, **asked).status is Status.UNKNOWN


def test_a_certificate_that_ends_soon() -> None:
    """The end is named; a file that is no certificate is unknown, not expired."""
    soon = answered(1, "notAfter=Dec  1 00:00:00 2026 GMT\nCertificate will expire")
    (finding,) = run({OPENSSL: soon}, certificates=("/etc/site.pem",)).findings
    assert "Dec  1 00:00:00 2026 GMT" in finding.message
    broken = run({OPENSSL: answered(1, stderr="Could not read certificate")}, certificates=("/etc/site.pem",))
    assert (broken.status, broken.findings) == (Status.UNKNOWN, ())


def test_a_missing_tool_is_unknown_and_hides_nothing() -> None:
    """What can be tried is tried; a tool that is not there proves nothing."""
    missing = SourceMissing("getent: not found")
    answers: dict[tuple[str, ...], CommandResult | SourceError] = {
        GETENT: missing,
        CONNECT: answered(1, stderr=REFUSED),
    }
    result = run(answers, names=("fs.example",), ports=("10.0.0.1:6817",))
    assert [each.code for each in result.findings] == ["host.reach.port"]
    assert result.undecided == ("fs.example: getent: not found",)
    assert run({GETENT: answered(3, stderr="enumeration")}, names=("fs.example",)).status is Status.UNKNOWN


@pytest.mark.parametrize(
    "settings",
    [
        {"names": ("a b",)},
        {"names": ("-x",)},
        {"ports": ("host",)},
        {"ports": ("host:0",)},
        {"ports": ("host:65536",)},
        {"ports": ("a b:22",)},
        {"names": ("n",) * 9},
    ],
)
def test_what_could_not_be_tried_is_refused(settings: dict[str, Any]) -> None:
    """Mistakes are said at start; nothing that a shell or a tool could take for something else is let through."""
    with pytest.raises(ValueError, match=f"{next(iter(settings))}: "):
        HostReachSettings(**settings)


@pytest.mark.process
def test_ports_of_this_machine() -> None:
    """The command that is really run connects to a port that listens, and tells one that does not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = f"127.0.0.1:{server.getsockname()[1]}"
        assert host_reach(RealNode(), HostReachSettings(ports=(here,))).status is Status.OK
    (finding,) = host_reach(RealNode(), HostReachSettings(ports=(here,))).findings
    assert finding.message == f"cannot connect to {here}: Connection refused"


@pytest.mark.process
def test_names_of_this_machine() -> None:
    """localhost resolves without any network."""
    assert host_reach(RealNode(), HostReachSettings(names=("localhost",))).status is Status.OK


@pytest.mark.process
def test_certificates_of_this_machine(tmp_path: Path) -> None:
    """A certificate for three days is found by seven, and not by two; a file that is none is unknown."""
    made = tmp_path / "site.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", "-subj", "/CN=node-1"]
    try:
        subprocess.run([*request, "-keyout", str(tmp_path / "key"), "-out", str(made)], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    (finding,) = host_reach(RealNode(), HostReachSettings(certificates=(str(made),))).findings
    assert (finding.code, str(finding.component)) == ("host.reach.certificate", f"file:{made}")
    assert host_reach(RealNode(), HostReachSettings(certificates=(str(made),), certificate_days=2)).status is Status.OK
    made.write_text("nothing")
    assert host_reach(RealNode(), HostReachSettings(certificates=(str(made),))).status is Status.UNKNOWN
