"""The man pages healthd(1) and healthd.toml(5), as man(7) reads them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator

from healthd import __version__
from healthd.api.exit_codes import MEANINGS
from healthd.api.grammar import _grammar
from healthd.api.overview import SECTIONS
from healthd.api.usage import shown, spelled, usage
from healthd.config.report import FieldDoc, documented_fields
from healthd.config.schema import config as schema
from healthd.config.values import sections_of
from healthd.core.check import NoSettings, discover

_ENVIRONMENT = (
    ("HEALTHD_SOCKET", "The daemon's socket, where `--socket` names none."),
    ("HEALTHD_SECTION_KEY", "A setting, above the files: HEALTHD_REMEDIATION_MODE is `[remediation] mode`."),
    ("NO_COLOR", "Not empty: no colours on a terminal."),
    ("FORCE_COLOR", "Not empty: colours in a pipe, too. NO_COLOR counts first."),
)
_FILES = (
    ("/etc/healthd/config.toml", "The configuration, see healthd.toml(5); then `/etc/healthd/conf.d/*.toml`."),
    ("/run/healthd/healthd.sock", "The daemon's socket. Root and `[daemon] group` use the one with `.op` behind it."),
    ("/var/lib/healthd", "Faults, acknowledgements, remediations, the audit trail and evidence."),
    ("/usr/share/doc/healthd/how-to", "The how-tos."),
)
_ABOUT = """One daemon per GPU node. It reads the machine, names what is wrong in the words of the hardware's vendor,
decides what that calls for, and does it through the cluster: Slurm or Kubernetes, HyperPod or EC2.

Without configuration it only observes.

The standard output is the result; notices and progress go to the standard error. On a terminal texts are in
colour, by state."""
_CONFIGURATION = """TOML. healthd reads `/etc/healthd/config.toml`, then `/etc/healthd/conf.d/*.toml` in the order of
their names, then environment variables; a later source wins key by key. `--config FILE` replaces the files, not the
variables.

A variable is HEALTHD_ and the key in capitals, with _ for everything else: HEALTHD_REMEDIATION_MODE is
`[remediation] mode`.

`healthd config show` prints every value and its origin; `healthd config validate` marks errors on the file itself. The
daemon reads all of it again at `systemctl reload healthd`."""


def of_the_command() -> str:
    """healthd(1): each verb with its arguments, in the sections of the help."""
    grammar = _grammar()
    verbs, abouts = grammar.verbs(), grammar.abouts()
    lines = [
        *_head("HEALTHD", "1"),
        *_section("NAME", [rf"healthd \- {_text(_plain(grammar.description or '')).rstrip('.')}"]),
        *_section("SYNOPSIS", [r".B healthd", r"\fIVERB\fR [\fIOPTIONS\fR]"]),
        *_section("DESCRIPTION", _paragraphs(_ABOUT)),
    ]
    for title, (names, example, meaning) in SECTIONS.items():
        lines += [f".SH {title.upper()}"]
        for name in names:
            lines += _verb(name, abouts[name], verbs[name])
        lines += [".PP", f"Example, {_text(meaning)}:", ".PP", ".RS 4", ".nf", _text(example), ".fi", ".RE"]
    lines += _section("EXIT STATUS", _terms((str(int(code)), about) for code, about in MEANINGS.items()))
    lines += _section("ENVIRONMENT", _terms(_ENVIRONMENT))
    lines += _section("FILES", _terms(_FILES))
    lines += _section("SEE ALSO", [r".BR healthd.toml (5),", r".BR systemctl (1),", r".BR journalctl (1)"])
    return "\n".join(lines) + "\n"


def of_the_configuration() -> str:
    """healthd.toml(5): each key with its type, its default and what it does."""
    lines = [
        *_head("HEALTHD.TOML", "5"),
        *_section("NAME", [r"healthd.toml \- the configuration of healthd"]),
        *_section("DESCRIPTION", _paragraphs(_CONFIGURATION)),
    ]
    for name, section in sections_of(schema.Config).items():
        lines += _settings((name,), section)
    lines += _settings(("[match]",), schema.MatchSection)
    lines += [r'.SH [checks."NAME"]', "Every check has these; its own are in the sections below."]
    lines += _keys(documented_fields(schema.CheckSection))
    for check in discover().values():
        if check.settings is not NoSettings:
            lines += [f'.SH [checks."{check.name}"]', *_keys(documented_fields(check.settings))]
    lines += _section("SEE ALSO", [r".BR healthd (1)"])
    return "\n".join(lines) + "\n"


def _head(title: str, section: str) -> list[str]:
    return [r".\" Made by packaging/manual/manual.py.", f'.TH {title} {section} "" "healthd {__version__}" healthd']


def _section(title: str, lines: Iterable[str]) -> list[str]:
    return [f".SH {title}", *lines]


def _verb(name: str, about: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f".SS healthd {_text(name)}"
    yield f"{_text(about[:1].upper() + about[1:])}."
    yield from (".PP", rf"\fB{_text(usage(name, parser))}\fR")
    yield from _terms((spelled(action), _values(action)) for action in shown(parser))


def _values(action: argparse.Action) -> str:
    about = (action.help or "").replace("%%", "%")
    words = ", ".join(str(choice) for choice in action.choices or ())
    about = about[:1].upper() + about[1:] + ("" if about.endswith((".", ")")) else ".")
    return f"{about} One of: {words}." if words and words not in about else about


def _settings(path: tuple[str, ...], cls: type) -> Iterator[str]:
    """A section and the sections below it."""
    below = sections_of(cls)
    yield f".SH [{'.'.join(path)}]"
    yield from _paragraphs((cls.__doc__ or "").strip())
    yield from _keys(row for row in documented_fields(cls) if row.name not in below)
    for name, inner in below.items():
        yield from _settings((*path, name), inner)


def _keys(rows: Iterable[FieldDoc]) -> Iterator[str]:
    yield from _terms((row.name, f"{row.doc} ({row.type}; {_default(row)})") for row in rows)


def _default(row: FieldDoc) -> str:
    return f"default {row.default}" if row.default else "no default"


def _terms(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for term, about in rows:
        yield from (".TP", rf"\fB{_text(term)}\fR", _text(about) or r"\&")


def _paragraphs(text: str) -> Iterator[str]:
    for each in text.split("\n\n"):
        yield from (".PP", _text(each))


def _text(text: str) -> str:
    """Prose as roff, on one line: what the pages set as code is bold."""
    words = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-").replace("~", r"\(ti").replace("^", r"\(ha")
    words = words.replace("'", r"\(aq")
    words = re.sub(r"\[([^\[\]]+)\]\([^()]+\)", r"\1", words)  # a link's text without its page
    words = re.sub(r"``([^`]+)``|`([^`]+)`", lambda found: rf"\fB{found[1] or found[2]}\fR", words)
    return rf"\&{words}" if words.startswith(".") else words


def _plain(text: str) -> str:
    return text[:1].lower() + text[1:]
