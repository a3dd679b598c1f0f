"""healthd new-check: which files it writes, and what it refuses. That they pass is in tests/daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.api.grammar import parse
from healthd.cli.new_check import KINDS, answer, new_files
from healthd.core.errors import HealthdError, UsageError


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of a checkout that it writes to; the process stands there."""
    (tmp_path / "checks").mkdir()
    (tmp_path / "tests/checks").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> str:
    return answer(parse(["new-check", *words])).out


@pytest.mark.parametrize("kind", KINDS)
def test_it_writes_the_check_and_its_test(checkout: Path, kind: str) -> None:
    """Two files, named after the check, and the command by which they are tried."""
    message = run("site.clock", f"--{kind}")
    written = {str(path.relative_to(checkout)): path.read_text() for path in checkout.rglob("*.py")}
    assert written == new_files("site.clock", kind)
    assert set(written) == {"checks/site_clock.py", "tests/checks/test_site_clock.py"}
    assert "make test-check CHECK=site.clock" in message
    assert not any("$" in text for text in written.values())


def test_a_dry_run_names_the_files_and_writes_none(checkout: Path) -> None:
    """So that a person sees where they would go."""
    assert "checks/site_clock.py" in run("site.clock", "--dry-run")
    assert not list(checkout.rglob("*.py"))


def test_a_file_that_is_there_is_kept(checkout: Path) -> None:
    """Neither of the two is written then."""
    (checkout / "tests/checks/test_site_clock.py").write_text("mine")
    with pytest.raises(HealthdError, match="never overwritten"):
        run("site.clock")
    assert not (checkout / "checks/site_clock.py").exists()


def test_a_name_that_is_taken_is_refused(checkout: Path) -> None:
    """Discovery would find two checks of one name."""
    with pytest.raises(HealthdError, match=r"the check gpu\.ecc exists already"):
        run("gpu.ecc")


@pytest.mark.parametrize("name", ["numa", "Host.numa", "host.numa.more", "host.nu-ma", "../x.y", ""])
def test_a_name_that_cannot_be_is_refused(checkout: Path, name: str) -> None:
    """With what is expected, and before anything is written."""
    with pytest.raises(UsageError, match=r"such as host\.numa"):
        run(name)
    assert not list(checkout.rglob("*.py"))


def test_outside_of_a_checkout_it_says_where_to_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes no folders."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HealthdError, match="root of a checkout"):
        run("site.clock")


def test_in_a_removed_folder_it_says_where_to_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell of an operator may stand in one."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(HealthdError, match="no folder checks/ here; run this at the root of a checkout"):
        run("site.clock")
