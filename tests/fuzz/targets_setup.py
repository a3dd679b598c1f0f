"""What is written for healthd: configuration, the service's environment, policies, and patterns of a site's own."""

from __future__ import annotations

from pathlib import Path

from healthd.checklib.patterns import safe_pattern
from healthd.config import environment, load
from healthd.config.key_lines import key_lines
from healthd.config.toml_text import parsed
from healthd.core.check import discover
from healthd.remediation.policy_files import rules_in
from tests.fuzz.target import Target, memory_file, text

_ROOT = Path(__file__).parents[2]
_SETTINGS = {name: check.settings for name, check in discover().items()}
_TOML = (
    *(each.read_bytes() for each in sorted((_ROOT / "docs").rglob("*.toml"))),
    b'[daemon]\nhttp = "127.0.0.1:9809"\n[remediation]\nmode = "repair"\n',
    b'[[policy.rule]]\nname = "a"\ncodes = ["gpu.xid.79"]\nladder = ["reboot_node"]\nreason = "x"\nsource = "y"\n',
    b'[checks."kernel.rules"]\n[[checks."kernel.rules".rules]]\nname = "a"\npattern = "foo (?P<x>.*)bar"\n',
    b'[[match]]\nnodes = ["a[1-9]"]\n[match.set.daemon]\nworkers = 3\n',
    b'[checks."plugin.run"]\nplugins = [{name="a", command=["/x"], json=true}]\n',
)
_POLICIES = tuple(each.read_bytes() for each in sorted((_ROOT / "remediation/policies").glob("*.toml")))
_PATTERNS = (
    *(b"foo (?P<x>.*)bar", b"NVRM: .*", b"(?:ab|cd)ef \\d+", b"abcd[^:]*: \\S+ x", b"aaaa(?=b).*", b"(a+)+bbbb"),
    b"abcd\\w*\\w*\\w*x",
)


def _configuration(data: bytes) -> None:
    memory_file().write_bytes(data)
    load.load(memory_file(), checks=_SETTINGS, environ={})


def _lines(data: bytes) -> None:
    message = text(data)
    if isinstance(parsed(message, "x"), dict):
        key_lines(message)


def _pattern(data: bytes) -> None:
    safe_pattern(data.decode("latin-1"))
    safe_pattern.cache_clear()


TARGETS = (
    Target(name="configuration", parse=_configuration, seeds=_TOML, units=(b"a=1\n", b"[[match]]\nnodes=['a']\n")),
    Target(name="toml-lines", parse=_lines, seeds=_TOML, units=(b"a.", b"[a]\n", b"x=[", b"[[a]]\nb=1\n", b"#x\n")),
    Target(
        name="service-environment",
        parse=lambda data: environment.service_variables(text(data)),
        seeds=(
            b'HEALTHD_DAEMON_HTTP="x"\n',
            b"HEALTHD_REMEDIATION_MODE='observe'\\\n# c\nA=b\n",
            b'HEALTHD_X="a\\"b" "c"\n',
        ),
        units=(b'HEALTHD_A="', b"HEALTHD_A=\\\n", b"HEALTHD_A=' '", b"\\", b"#\\\n"),
    ),
    Target(name="policies", parse=lambda data: rules_in(text(data), "p.toml"), seeds=(*_POLICIES, *_TOML[-4:])),
    Target(name="site-patterns", parse=_pattern, seeds=_PATTERNS, refuses=(ValueError,), longest=1 << 11),
)
