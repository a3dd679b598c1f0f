"""Where the programs of the control plane come from, and what is said where they cannot be had. No build runs here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.live.kubernetes import find_binaries
from tests.live.kubernetes.find_binaries import (
    OLDEST,
    BuildFailed,
    Unavailable,
    asked_for,
    cache_folder,
    cached,
    pinned,
    program,
    recipe,
)
from tests.live.kubernetes.pin_kubernetes import go_mod, newest_patch
from tests.support.limits import limit_s

ROOT = Path(__file__).resolve().parents[3]

# A stand-in for Go: it says what its test wants, and "builds" a script.
GO = """#!/bin/sh
echo "$1" >>"{log}"
case $1 in
list) {on_list} ;;
build) {on_build} ;;
esac
"""
BUILD = 'while [ "$1" != -o ]; do shift; done; sleep 0.3; printf "#!/bin/sh\\n" >"$2"; chmod 755 "$2"'


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No assets, an empty cache, and a PATH with a shell but no Go; returns a folder that is in PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("KUBEBUILDER_ASSETS", "TEST_KUBERNETES_VERSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("sh", "sleep", "chmod"):
        (tools / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    return tools


def go_in(tools: Path, *, on_list: str = "true", on_build: str = BUILD) -> Path:
    log = tools / "log"
    executable(tools / "go", GO.format(log=log, on_list=on_list, on_build=on_build))
    return log


def executable(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def test_without_assets_and_go_the_sentence_names_both_ways_out(empty: Path) -> None:
    """The reason of the skip says what is missing and what to do."""
    with pytest.raises(Unavailable, match="KUBEBUILDER_ASSETS is not set, and there is no go in PATH.*install Go"):
        program("etcd")


def test_assets_come_first_and_may_lack_one(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """envtest's archives hold no controller manager: that one is looked for elsewhere, the others are taken."""
    assets = tmp_path / "assets"
    assets.mkdir()
    executable(assets / "etcd", "#!/bin/sh\n")
    executable(assets / "kube-apiserver", "#!/bin/sh\necho Kubernetes v1.36.1\n")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert program("etcd") == assets / "etcd"
    assert program("kube-apiserver") == assets / "kube-apiserver"
    with pytest.raises(Unavailable, match="does not hold it"):
        program("kube-controller-manager")


@pytest.mark.parametrize("says", ["Kubernetes v1.29.9", "nothing known"])
def test_an_old_api_server_is_refused(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    """What is older than the tests speak for, or does not say how old it is, is not run."""
    executable(tmp_path / "kube-apiserver", f"#!/bin/sh\necho {says}\n")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(Unavailable, match=f"{says}.*expected Kubernetes 1.30 or newer"):
        program("kube-apiserver")


@pytest.mark.parametrize(
    ("name", "says", "taken"),
    [
        ("etcd", "etcd Version: 3.6.5", True),
        ("etcd", "etcd Version: 3.4.23", False),
        ("kube-apiserver", "Kubernetes v1.36.1", True),
        ("kube-apiserver", "Kubernetes v1.29.9", False),
        ("helm", "v3.19.0+g1", True),
        ("helm", "v4.0.0+g1", False),
        ("kubectl", "nothing known", False),
        ("kubectl", "Client Version: v1.35.1", True),
        ("kubectl", "Client Version: v1.36.4", False),
    ],
)
def test_what_is_in_path_is_taken_where_its_version_fits(empty: Path, name: str, says: str, taken: bool) -> None:
    """Instead of a build; what the tests do not speak for is as good as not there."""
    executable(empty / name, f"#!/bin/sh\necho '{says}'\n")
    assert cached(name) == (empty / name if taken else None)


def test_a_build_says_how_far_it_is_and_so_does_who_waits(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the packages that Go names as it compiles them, of those that it listed."""
    monkeypatch.setattr(find_binaries, "SAYS_EACH_S", 0.2)
    slow = f"for each in a b c d e f; do echo package/$each >&2; sleep 0.3; done; {BUILD}"
    go_in(empty, on_list="for each in a b c d e f g h; do echo package/$each; done", on_build=slow)
    messages: list[list[str]] = [[], []]
    threads = [threading.Thread(target=program, args=("etcd", each.append)) for each in messages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (waited, built) = sorted(messages, key=lambda each: "building" in each[0])
    assert any("packages compiled of at most 8" in each for each in built)
    assert any("waiting for another process: etcd: " in each for each in waited)


def test_a_program_is_built_once(empty: Path) -> None:
    """The second time it comes from the cache, and nothing unfinished lies about."""
    log = go_in(empty)
    messages: list[str] = []
    path = program("etcd", messages.append)
    assert path == cached("etcd") == program("etcd", messages.append)
    assert log.read_text().split() == ["list", "build"]
    assert sorted(each.name for each in path.parent.iterdir()) == ["etcd", "etcd.json", "lock"]
    assert len(messages) == 2


def test_two_who_ask_at_once_build_once(empty: Path) -> None:
    """The second waits for the first one's lock, says so, and takes what it made."""
    log = go_in(empty)
    messages: list[str] = []
    threads = [threading.Thread(target=program, args=("etcd", messages.append)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.read_text().split() == ["list", "build"]
    assert any("waiting for another process" in text for text in messages)


def test_modules_that_cannot_be_loaded_are_no_fault_of_ours(empty: Path) -> None:
    """No network: the tests are skipped, with Go's own words."""
    go_in(empty, on_list="echo 'dial tcp: lookup proxy.golang.org: no such host' >&2; exit 1")
    with pytest.raises(Unavailable, match="could not load the modules.*no such host"):
        program("etcd")


@pytest.mark.parametrize("words", ["missing go.sum entry for module", "verifying x: checksum mismatch"])
def test_sources_that_go_sum_does_not_know_are_a_fault(empty: Path, words: str) -> None:
    """A pin that was changed by half, or a changed source, is never a skip."""
    go_in(empty, on_list=f"echo '{words}' >&2; exit 1")
    with pytest.raises(BuildFailed, match=words):
        program("etcd")


def test_a_failed_build_is_a_fault_and_leaves_nothing(empty: Path) -> None:
    """Go had the sources: that it made nothing of them is red, and the next session tries again."""
    go_in(empty, on_build="echo 'no space left on device' >&2; exit 2")
    with pytest.raises(BuildFailed, match="ended with 2:\nno space left on device"):
        program("etcd")
    assert cached("etcd") is None
    assert [each.name for each in cache_folder(recipe("etcd")).iterdir()] == ["lock"]


def test_a_new_pin_is_a_new_folder(tmp_path: Path) -> None:
    """The cache never hands out what other sources made: its folder is named by go.mod, go.sum and the flags."""
    before = cache_folder(recipe("etcd"))
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_bytes((find_binaries.HERE / name).read_bytes() + b"\n")
    assert cache_folder(recipe("etcd"), modules=tmp_path) != before


@pytest.mark.parametrize("folder", [".", *pinned()])
def test_the_staging_modules_are_of_the_same_release(folder: str) -> None:
    """Kubernetes v1.X.Y is built with each of its staging modules at v0.X.Y, and go.sum has a sum for each."""
    pins = (find_binaries.HERE / folder / "go.mod").read_text(encoding="utf-8")
    sums = (find_binaries.HERE / folder / "go.sum").read_text(encoding="utf-8")
    version = next(line.split()[1] for line in pins.splitlines() if line.strip().startswith("k8s.io/kubernetes "))
    assert folder == "." or version.startswith(f"v{folder}.")
    replaced = [line.split() for line in pins.splitlines() if "=>" in line]
    assert len(replaced) >= 28
    assert {words[0] == words[2] and words[3] for words in replaced} == {version.replace("v1.", "v0.", 1)}
    assert f"k8s.io/kubernetes {version} h1:" in sums
    assert f"k8s.io/apiserver {version.replace('v1.', 'v0.', 1)} h1:" in sums


# ---------------------------------------------------------------------------------------------------------------------
# another Kubernetes than the default one


def test_the_oldest_that_is_pinned_is_the_oldest_that_the_chart_installs_on() -> None:
    """What is said to be supported is what can be run: `make test-kubernetes VERSION=1.30`."""
    oldest, *_, newest = pinned().values()
    template = (ROOT / "packaging/helm/healthd/templates/_names.tpl").read_text(encoding="utf-8")
    assert f'semverCompare "<{oldest[0]}.{oldest[1]}.0-0"' in template
    assert oldest == OLDEST < (1, 34) < newest


@pytest.mark.parametrize(("asked", "folder"), [("", ""), ("1.34", ""), ("1.30", "1.30"), ("newest", [*pinned()][-1])])
def test_a_session_asks_for_a_version(monkeypatch: pytest.MonkeyPatch, asked: str, folder: str) -> None:
    """By its minor, or as the newest that is pinned; the default one is named by its minor, too."""
    monkeypatch.setenv("TEST_KUBERNETES_VERSION", asked)
    assert asked_for() == folder
    assert recipe("kube-apiserver").module == (folder or ".")
    assert recipe("helm").module == "helm"


def test_a_version_that_is_not_pinned_is_said_with_the_way_to_pin_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is built of sources that no go.sum vouches for."""
    monkeypatch.setenv("TEST_KUBERNETES_VERSION", "1.31")
    with pytest.raises(
        LookupError, match=r"1\.31 is not pinned, expected newest or one of 1\.30, .*pin_kubernetes 1\.31"
    ):
        program("etcd")


def test_each_version_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache tells them apart, and the API server says which it is."""
    folders = set()
    for asked in ("", *pinned()):
        monkeypatch.setenv("TEST_KUBERNETES_VERSION", asked)
        folders |= {cache_folder(recipe("etcd")), cache_folder(recipe("kube-apiserver"))}
        assert f"gitVersion=v{asked or '1.34'}." in recipe("kube-apiserver").ldflags
    assert len(folders) == 2 * (1 + len(pinned()))


def test_a_program_that_is_here_must_be_of_the_version_that_is_asked_for(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the assets and in PATH alike: another version is passed over; an etcd, which says nothing of it, is built."""
    assets = tmp_path / "assets"
    assets.mkdir()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    for folder, version in ((assets, "v1.34.2"), (empty, "v1.30.9")):
        executable(folder / "kube-apiserver", f"#!/bin/sh\necho Kubernetes {version}\n")
        executable(folder / "etcd", "#!/bin/sh\necho etcd Version: 3.6.4\n")
    assert cached("kube-apiserver") == assets / "kube-apiserver"
    monkeypatch.setenv("TEST_KUBERNETES_VERSION", "1.30")
    assert cached("kube-apiserver") == empty / "kube-apiserver"
    assert cached("etcd") is None


OF_KUBERNETES = """module k8s.io/kubernetes

go 1.26.0

require (
\tgo.etcd.io/etcd/client/v3 v3.7.0
)

replace (
\tk8s.io/client-go => ./staging/src/k8s.io/client-go
\tk8s.io/api => ./staging/src/k8s.io/api
)
"""


def test_a_pin_follows_from_the_go_mod_of_kubernetes() -> None:
    """Its staging modules by their published versions, its etcd and its Go; another shape is refused."""
    lines = [line.strip() for line in go_mod("v1.37.2", OF_KUBERNETES).splitlines()]
    assert "go 1.26.0" in lines
    assert {"go.etcd.io/etcd/server/v3 v3.7.0", "k8s.io/kubernetes v1.37.2"} <= set(lines)
    assert [each for each in lines if "=>" in each] == [
        "k8s.io/api => k8s.io/api v0.37.2",
        "k8s.io/client-go => k8s.io/client-go v0.37.2",
    ]
    with pytest.raises(ValueError, match=r"v1\.37\.2 is of another shape"):
        go_mod("v1.37.2", OF_KUBERNETES.replace("./staging", "./elsewhere"))


@pytest.mark.parametrize(
    ("wanted", "found"), [("newest", "v1.37.10"), ("1.3", "v1.3.1"), ("1.37", "v1.37.10"), ("1.37.9", "v1.37.9")]
)
def test_the_newest_patch_is_pinned(wanted: str, found: str) -> None:
    """By number, and never a release candidate."""
    assert newest_patch(wanted, ["v1.3.1", "v1.37.9", "v1.37.10", "v1.37.2", "v1.38.0-rc.1"]) == found


def test_a_version_that_no_proxy_has_is_said() -> None:
    """With the newest that there is."""
    with pytest.raises(ValueError, match=r"no k8s.io/kubernetes 1\.38; the newest is v1\.37\.2"):
        newest_patch("1.38", ["v1.37.2", "v1.38.0-rc.1"])


@pytest.mark.slow
def test_the_build_starts_with_the_session_and_ends_with_it(empty: Path, tmp_path: Path) -> None:
    """A run with a test that needs the programs builds beside the other tests, and says so past pytest's capture; ended
    early, it leaves no process."""
    pid = tmp_path / "pid"
    go_in(empty, on_list=f'echo $$ >"{pid}"; sleep 60')
    tests = ROOT / "tests" / "live" / "kubernetes"
    # With a fixture that fails at once, and the real hooks: the session ends while Go still works.
    plugin = tmp_path / "stop_early.py"
    plugin.write_text(
        "import pathlib, time\n\ndef pytest_runtestloop(session):\n    end = time.monotonic() + 30\n"
        f"    while not pathlib.Path({str(pid)!r}).exists() and time.monotonic() < end:\n        time.sleep(0.05)\n"
        "    return True\n"
    )
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "stop_early", "-p", "no:cacheprovider", str(tests)]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "HEALTHD_TEST_KUBERNETES": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, check=False, capture_output=True, text=True, timeout=limit_s(60))
    assert "helm: building helm.sh/helm/v3/cmd/helm once" in done.stderr
    number = int(pid.read_text())
    end = time.monotonic() + limit_s(10)
    while Path(f"/proc/{number}/cmdline").exists() and Path(f"/proc/{number}/cmdline").read_bytes():
        assert time.monotonic() < end, f"process {number} of the build outlived its session"
        time.sleep(0.05)
