"""The house rules that no linter knows: packaging, names, and what a file may say."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import grimp
import pytest
from msgspec import Struct

from tests.conftest import Guard
from tests.support.limits import limit_s
from tests.support.pure_modules import pure_modules, source_of

ROOT = Path(__file__).parents[3]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
INSTALLED_AS = {"healthd": "healthd", "checks": "healthd/checks", "remediation": "healthd/remediation"}
# Put together here so that this file does not say them itself.
FORBIDDEN_WORDS = ("unittest" + ".mock", "mock" + ".patch", "NotImplemented" + "Error", "/wo" + "rk/", "../sha" + "red")
NOT_OURS = re.compile(r"\.git|\.venv|build|dist|__pycache__|\.hypothesis|\.coverage.*|.*_cache|.*\.(egg-info|pyc|so|o)")


def tree() -> Iterator[Path]:
    """Every file that belongs to the project, as a path below its root; links are not followed."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not NOT_OURS.fullmatch(name)]
        yield from ((Path(folder) / name).relative_to(ROOT) for name in names if not NOT_OURS.fullmatch(name))


def modules(*folders: str) -> list[Path]:
    return sorted(path for path in tree() if path.suffix == ".py" and path.parts[0] in folders)


def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def installed_name(path: Path) -> str:
    """Where a source file stands in an installation: ``checks/x.py`` as ``healthd/checks/x.py``."""
    return "/".join([INSTALLED_AS[path.parts[0]], *path.parts[1:]])


# ---------------------------------------------------------------------------------------------------------------------
# packaging


def test_every_package_on_disk_is_listed() -> None:
    """setuptools leaves an unlisted package out of the wheel without a word, so the list and the disk agree."""
    initials = (path for path in modules(*INSTALLED_AS) if path.name == "__init__.py")
    on_disk = {installed_name(path.parent).replace("/", ".") for path in initials}
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(on_disk)


def test_packaging_is_a_folder_and_no_package() -> None:
    """An __init__.py in packaging/ would hide the library of that name from pip and pytest."""
    assert not (ROOT / "packaging" / "__init__.py").exists()


def test_tests_are_no_packages() -> None:
    """Test files are found by path; an __init__.py would give them a second name."""
    assert [path for path in modules("tests") if path.name == "__init__.py"] == []


@pytest.mark.parametrize("name", ["checks", "remediation"])
def test_links_lead_to_the_real_folders(name: str) -> None:
    """The links are relative, so they hold wherever the checkout lies."""
    link = ROOT / "healthd" / name
    if not link.is_symlink():
        pytest.skip("links are not checked out here (core.symlinks=false, or an sdist)")
    assert os.readlink(link) == f"../{name}"


@pytest.mark.process
@pytest.mark.parametrize("name", ["checks", "remediation", "unittest" + ".mock"])
def test_ruff_refuses_the_second_name_of_a_module(name: str) -> None:
    """`import checks` works by accident in a checkout and would load every check twice; ruff stops it."""
    command = [sys.executable, "-m", "ruff", "check", "--quiet", "--stdin-filename", "healthd/new.py", "-"]
    text = f"import {name}\n"
    done = subprocess.run(
        command, check=False, input=text, capture_output=True, text=True, cwd=ROOT, timeout=limit_s(60)
    )
    assert "TID251" in done.stdout, done.stdout + done.stderr


class Built(Struct, frozen=True, kw_only=True):
    """The names in an sdist, without its top folder, and the files of the wheel made from it."""

    sdist: frozenset[str]
    wheel: dict[str, bytes]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both built from a copy of the tree in which an earlier build left a check that is gone by now."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for path in tree():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, copy / path, follow_symlinks=False)
    for name in ("checks", "remediation"):
        (copy / "healthd" / name).symlink_to(f"../{name}")
    stale = copy / "build" / "lib" / "healthd" / "checks" / "retired.py"
    stale.parent.mkdir(parents=True)
    stale.write_text('"""A check that was removed."""\n')
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit_s(90))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        names = frozenset(member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir())
        assert not any(member.issym() or member.islnk() for member in archive.getmembers())
    with zipfile.ZipFile(next(out.glob("*.whl"))) as wheel:
        return Built(sdist=names, wheel={name: wheel.read(name) for name in wheel.namelist()})


@pytest.mark.slow
def test_the_wheel_holds_exactly_the_tree(built: Built) -> None:
    """Every file of the three source folders is installed, nothing else is, and a stale build/ brings nothing back."""
    expected = {installed_name(path) for path in tree() if path.parts[0] in INSTALLED_AS and len(path.parts) > 1}
    assert {name for name in built.wheel if ".dist-info/" not in name and ".data/" not in name} == expected


@pytest.mark.slow
def test_the_wheel_owns_one_name(built: Built) -> None:
    """Only `healthd` is installed at top level: two wheels that own `checks` break each other."""
    tops = {name.split("/")[0] for name in built.wheel}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == {"healthd"}


@pytest.mark.slow
def test_the_launcher_is_a_script_not_an_entry_point(built: Built) -> None:
    """pip writes its interpreter over `#!python` and adds no import of its own to the start of `healthd check`."""
    scripts = {name.rpartition("/")[2]: text for name, text in built.wheel.items() if ".data/scripts/" in name}
    assert list(scripts) == ["healthd"]
    assert scripts["healthd"].startswith(b"#!python\n")
    assert not any(name.endswith("entry_points.txt") for name in built.wheel)


@pytest.mark.slow
def test_the_sdist_can_be_tested_and_packaged(built: Built) -> None:
    """tests/, packaging/, the locks and the Makefile are in the sdist; setuptools alone would leave them out."""
    wanted = {path.as_posix() for path in tree() if path.parts[0] in ("tests", "packaging", "requirements", "Makefile")}
    assert wanted - built.sdist == set()
    assert {"LICENSE", "README.md", "CHANGELOG.md"} <= built.sdist


# ---------------------------------------------------------------------------------------------------------------------
# locks and the Makefile


@pytest.mark.parametrize("name", ["build", "runtime", "dev"])
def test_locks_pin_and_hash_everything_and_name_no_place(name: str) -> None:
    """A lock says what is installed; where it comes from is the machine's own configuration."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    entries = [entry for entry in re.split(r"\n(?=[A-Za-z0-9])", text) if not entry.startswith("#")]
    pinned = re.compile(r"[A-Za-z0-9._-]+==\S+ .*--hash=sha256:", re.DOTALL)
    assert entries
    assert [entry for entry in entries if not pinned.match(entry)] == []
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links|--trusted-host| @ ", text)


def locked_names(name: str) -> set[str]:
    return set(re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE))


def test_two_packages_beside_each_other_share_no_distribution() -> None:
    """What healthd's package has is not in healthd-nccl once more: a package manager would refuse the second."""
    assert locked_names("runtime") & locked_names("nccl") == set()


@pytest.mark.parametrize("name", ["runtime", "dev", "nccl"])
def test_locks_know_every_dependency(name: str) -> None:
    """A dependency added to pyproject.toml is in the lock: `make lock` was run."""
    wanted = [] if name == "nccl" else list(PYPROJECT["project"]["dependencies"])
    wanted += PYPROJECT["project"]["optional-dependencies"].get(name, [])
    locked = locked_names(name)
    names = {re.match(r"[A-Za-z0-9._-]+", entry)[0].lower().replace("_", "-") for entry in wanted}  # type: ignore[index]
    assert names - {entry.lower().replace("_", "-") for entry in locked} == set()


def test_ci_ends_with_the_test_command() -> None:
    """CI runs what the README tells a person to run, and its last lines are pytest's."""
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands[-1] == "make test"


# ---------------------------------------------------------------------------------------------------------------------
# what a file may say


def test_a_module_opens_with_what_it_is_for() -> None:
    """In a sentence of its own."""
    found = modules(*INSTALLED_AS, "tests", "bench")
    opens = re.compile(r'(#.*\n)*"""\s*[^\s"]')
    assert [str(path) for path in found if not opens.match((ROOT / path).read_text(encoding="utf-8"))] == []


def test_every_test_states_a_claim() -> None:
    """A test's docstring says what is true when it passes."""
    silent = [
        f"{path}::{node.name}"
        for path in modules("tests")
        if path.name.startswith("test_")
        for top in parsed(path).body
        for node in (top.body if isinstance(top, ast.ClassDef) else [top])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if not ast.get_docstring(node)
    ]
    assert silent == []


@pytest.mark.parametrize("module", pure_modules())
def test_a_pure_module_asks_no_clock_and_opens_no_file(module: str) -> None:
    """What import-linter cannot see: datetime.now, open, print and input need no import."""
    calls = [node.func for node in ast.walk(parsed(source_of(module).with_suffix(".py"))) if isinstance(node, ast.Call)]
    attributes = {call.attr for call in calls if isinstance(call, ast.Attribute)}
    names = {call.id for call in calls if isinstance(call, ast.Name)}
    assert attributes & {"now", "utcnow", "today", "read_text", "write_text"} == set()
    assert names & {"open", "print", "input", "exec", "eval", "__import__"} == set()


@pytest.mark.parametrize("module", pure_modules())
def test_a_pure_module_is_imported_by_itself(module: str) -> None:
    """A pure module needs nothing started first; and one that no test uses shows in the coverage step as uncovered."""
    assert importlib.import_module(module).__doc__


def test_a_class_name_stands_once() -> None:
    """A reader who meets a name knows which class is meant, without a look at the imports."""
    named: dict[str, list[Path]] = {}
    for path in modules(*INSTALLED_AS):
        for each in ast.walk(parsed(path)):
            if isinstance(each, ast.ClassDef):
                named.setdefault(each.name, []).append(path)
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also not by imports inside of functions. CycleError names the circle."""
    graph = grimp.build_graph("healthd", cache_dir=None)
    TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()


def test_no_file_says_what_it_must_not() -> None:
    """No file names this machine's own paths, patches our modules or leaves a stub."""
    messages = []
    for path in tree():
        spared = path.name == "pyproject.toml" or (ROOT / path).is_symlink()  # pyproject.toml holds the ban itself
        raw = b"" if spared else (ROOT / path).read_bytes()
        messages += [f"{path}: {word}" for word in FORBIDDEN_WORDS if word.encode() in raw]
    assert messages == []


def test_no_test_waits_as_long_as_a_quiet_machine_takes() -> None:
    """A time-out of less than ten minutes that is no ``limit_s`` fails where many share the cores, and so does a bound
    on what something took. In a line that is given to another process a time-out is as long as that."""
    waited = re.compile(r"\btimeout=(\d+(?:\.\d+)?)\b(?=[,)])")
    bounded = re.compile(r"assert .*(?:\btook_s|monotonic\(\) - \w+) <=? (\d+(?:\.\d+)?)(?![\d.]| \+)")
    times = [
        f"{path}: {found[0]}"
        for path in modules("tests")
        for pattern in (waited, bounded)
        for found in pattern.finditer((ROOT / path).read_text(encoding="utf-8"))
        if 0 < float(found[1]) < 600
    ]
    assert times == []


def test_names_of_test_files_are_unique() -> None:
    """pytest's importlib mode tolerates twins; people who search for a test by name do not."""
    names = [path.name for path in modules("tests") if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


# ---------------------------------------------------------------------------------------------------------------------
# the guards of tests/conftest.py


def test_a_process_is_stopped_where_none_is_expected() -> None:
    """A unit test that starts a process is stopped, and fails even if the code under test swallows that."""
    guard = Guard()
    guard("subprocess.Popen", ("/bin/true", ["true"], None, None))
    guard.processes_forbidden = True
    with pytest.raises(RuntimeError, match="tests here start no process"):
        guard("subprocess.Popen", ("/bin/true", ["true"], None, None))
    assert len(guard.caught) == 1


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0", "", "2001:db8::1", "imds.example"])  # noqa: S104  # it must be refused
def test_an_address_beyond_loopback_is_stopped(host: str) -> None:
    """No test, of whatever kind, binds or reaches an address that is not loopback."""
    guard = Guard()
    with socket.socket() as sock, pytest.raises(RuntimeError, match="stays on loopback"):
        guard("socket.connect", (sock, (host, 80)))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_left_alone(host: str) -> None:
    """Servers and clients of one test talk to each other."""
    guard = Guard()
    with socket.socket() as sock:
        guard("socket.bind", (sock, (host, 80)))
    guard("socket.getaddrinfo", (host, 80, 0, 0, 0))
    assert guard.caught == []


@pytest.mark.process
def test_a_run_without_an_executed_test_is_red(tmp_path: Path) -> None:
    """All skipped is no green: pytest's exit code 5, as for no tests at all."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    text = "import pytest\n\n\n@pytest.mark.skip(reason='nothing here')\ndef test_one(): ...\n"
    (tmp_path / "test_nothing.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=limit_s(60)
    )
    assert (done.returncode, "1 skipped" in done.stdout) == (5, True), done.stdout + done.stderr
