"""The man pages and completions of the packages: made of the grammar and the schema, and read by what reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from healthd.api.grammar import _grammar
from healthd.api.usage import shown
from healthd.config.report import documented_fields
from healthd.config.schema.config import Config
from tests.support.limits import limit_s
from tests.support.running import ROOT
from tests.support.scripts import load_script

BASH = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_healthd
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What packaging/stage.sh puts below /usr/share."""
    folder: Path = tmp_path_factory.mktemp("share")
    assert load_script("manual_make", ROOT / "packaging/manual/manual.py").main([str(folder)]) == 0
    return folder


def done(*argv: str | Path) -> str:
    """The output of a program that must succeed and complain of nothing."""
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s(60.0), check=False, cwd="/")
    assert (ran.returncode, ran.stderr) == (0, ""), argv
    return ran.stdout


def needed(program: str, package: str) -> str:
    """The program, or the test is skipped with what is missing."""
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here: apt-get install {package}")
    return program


@pytest.mark.process
@pytest.mark.parametrize("name", ["man/man1/healthd.1", "man/man5/healthd.toml.5"])
def test_groff_takes_a_page_without_a_warning(share: Path, name: str) -> None:
    """With every warning that groff has; and the page is not empty."""
    page = done(needed("groff", "groff-base"), "-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbou", share / name)
    assert len(page.splitlines()) > 300


@pytest.mark.process
def test_the_page_of_the_command_has_every_verb_option_and_exit_code(share: Path) -> None:
    """As it is printed: what the grammar knows, an operator finds."""
    page = done(needed("groff", "groff-base"), "-man", "-Kutf8", "-Tutf8", "-P-cbou", share / "man/man1/healthd.1")
    for verb, parser in _grammar().verbs().items():
        part = page.split(f"\n   healthd {verb}\n")[1].split("\n   healthd ")[0]
        for action in shown(parser):
            name = action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)
            assert re.search(rf"^       {re.escape(name)}\b", part, re.MULTILINE), (verb, name)
    assert re.search(r"^       78 ", page, re.MULTILINE)
    assert "--after" not in page


def test_the_page_of_the_configuration_has_every_key(share: Path) -> None:
    """Each section and each of its keys, with the default."""
    page = (share / "man/man5/healthd.toml.5").read_text(encoding="utf-8").replace(r"\-", "-")
    for name in ("node", "daemon", "remediation", "budget", "notify"):
        part = page.split(f"\n.SH [{name}]\n")[1].split("\n.SH [")[0]
        (section,) = (each for each in documented_fields(Config) if each.name == name)
        for row in documented_fields(type(getattr(Config(), section.name))):
            if row.type != "a section":
                assert rf"\fB{row.name}\fR" in part, (name, row.name)
    assert '.SH [checks."gpu.count"]' in page


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["healthd", "stat"], ["status"]),
        (["healthd", "hel"], ["help"]),
        (["healthd", "help", "flee"], ["fleet"]),
        (["healthd", "check", "--context", ""], ["manual", "prolog", "epilog", "boot"]),
        (["healthd", "check", "gpu.ecc"], ["gpu.ecc"]),
        (["healthd", "explain", "gpu.xid.119"], ["gpu.xid.119"]),
        (["healthd", "history", "--fo"], ["--follow"]),
        (["healthd", "history", "--kind", "de"], ["decision"]),
        (["healthd", "config", "va"], ["validate"]),
        (["healthd", "doctor", "--config", "/etc/passw"], ["/etc/passwd"]),
        (["healthd", "fleet", "rep"], ["report"]),
        (["healthd", "ack", "--for", ""], [""]),
    ],
)
def test_bash_completes(share: Path, words: list[str], offered: list[str]) -> None:
    """Verbs, options, their words, checks, codes and files; nothing where the word is the operator's own."""
    output = done("bash", "-c", BASH, "bash", share / "bash-completion/completions/healthd", *words)
    assert [each for each in output.split("\n")[:-1] if not each.startswith("/etc/passwd-")] == offered


@pytest.mark.process
def test_bash_knows_the_command_by_the_file(share: Path) -> None:
    """As bash-completion loads it."""
    shown_as = done(
        "bash", "-c", 'source "$1"; complete -p healthd', "bash", share / "bash-completion/completions/healthd"
    )
    assert shown_as == "complete -F _healthd healthd\n"


@pytest.mark.process
def test_zsh_loads_its_completion(share: Path) -> None:
    """compinit takes it for the command, and the function can be read in."""
    script = (
        f"fpath=({share}/zsh/vendor-completions $fpath); autoload -Uz compinit; compinit -u -D; autoload +X _healthd"
    )
    assert done(needed("zsh", "zsh"), "-f", "-c", f"{script}; print $_comps[healthd]") == "_healthd\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "offered"),
    [("healthd stat", "status"), ("healthd history --kind de", "decision"), ("healthd help fl", "fleet")],
)
def test_fish_completes(share: Path, line: str, offered: str) -> None:
    """fish itself says what it would offer."""
    script = f"source {share}/fish/vendor_completions.d/healthd.fish; complete -C '{line}'"
    output = done(needed("fish", "fish"), "--no-config", "-c", script)
    assert [row.split("\t")[0] for row in output.splitlines()] == [offered]


def test_wrong_arguments_write_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """It names what it expects, with the exit code of a wrong command line."""
    assert load_script("manual_make", ROOT / "packaging/manual/manual.py").main([]) == 64
    assert "usage: packaging/manual/manual.py SHARE" in capsys.readouterr().err
