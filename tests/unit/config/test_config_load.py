"""Reading configuration: who wins, what is refused, and how the refusal reads."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import Struct, field

from healthd.config.environment import service_variables
from healthd.config.load import MAX_PROBLEMS, Loaded, examine, load
from healthd.config.toml_text import MAX_BYTES
from healthd.core.errors import ConfigError, RegistrationError
from healthd.core.model import Mode
from tests.support.running import NOBODY


class EccSettings(Struct, frozen=True, kw_only=True):
    """As a check declares them."""

    max_correctable: int = 10
    """Errors."""

    ignore: tuple[str, ...] = ()
    """Names."""

    def __post_init__(self) -> None:
        if self.max_correctable < 0:
            raise ValueError(f"max_correctable is {self.max_correctable}, expected at least 0")


class NoSettings(Struct, frozen=True, kw_only=True):
    """A check that has nothing to set."""


NOWHERE = Path("/nonexistent/config.toml")
CHECKS: Mapping[str, type] = {"gpu.ecc": EccSettings, "gpu.xid": NoSettings}


def write(folder: Path, text: str | bytes, name: str = "config.toml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def loaded(path: Path | None, *, default: Path = NOWHERE, **environ: str) -> Loaded:
    return load(path, checks=CHECKS, environ=environ, default_path=default)


def refused(path: Path | None, *, default: Path = NOWHERE, **environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        loaded(path, default=default, **environ)
    return caught.value.problems


# ---------------------------------------------------------------------------------------------------------------------
# what holds when


def test_without_a_file_everything_has_its_default() -> None:
    """A machine without any configuration gets the defaults, and every value says so."""
    result = loaded(None)
    assert result.config.remediation.mode is Mode.OBSERVE
    assert result.config.budget.max_out == "5%"
    assert result.config.checks["gpu.ecc"].settings == EccSettings()
    assert not result.settings


SERVICE = r"""
# for tonight \
HEALTHD_BUDGET_MAX_OUT=99
; HEALTHD_BUDGET_MAX_OUT=98
  HEALTHD_REMEDIATION_MODE = "observe"
HEALTHD_NODE_LABELS=["a=b", "c=\"d\""]
HEALTHD_NODE_NAME=gpu\
-42
HEALTHD_ORCHESTRATOR_SLURM_CONF='/etc/it'"s \$here"/x y
OTHER=1
nonsense
"""
SERVICE_VALUES = {
    "HEALTHD_REMEDIATION_MODE": "observe",
    "HEALTHD_NODE_LABELS": '["a=b", "c="d""]',
    "HEALTHD_NODE_NAME": "gpu-42",
    "HEALTHD_ORCHESTRATOR_SLURM_CONF": "/etc/its $here/x y",
}
"""As systemd reads it: tests/installing/test_deb.py asks one."""


def test_the_environment_of_the_service_is_read_as_systemd_reads_it() -> None:
    """Comments, quotes, a backslash before a character or at a line's end; what is no assignment of ours is passed
    over."""
    assert service_variables(SERVICE) == SERVICE_VALUES


def test_the_environment_of_the_service_wins_over_files_and_loses_to_the_real_one(tmp_path: Path) -> None:
    """A hook without a daemon is bound by it like the daemon, which has it from systemd; each says where it is from."""
    default = write(tmp_path, '[remediation]\nmode = "repair"\n[budget]\nmax_out = 3\n')
    at = write(tmp_path, "HEALTHD_REMEDIATION_MODE=observe\nHEALTHD_BUDGET_MAX_OUT=5\n", "environment")
    result = loaded(None, default=default, HEALTHD_BUDGET_MAX_OUT="7")
    assert (result.config.remediation.mode, result.config.budget.max_out) == (Mode.OBSERVE, 7)
    assert result.origin(("remediation", "mode")) == f"{at} HEALTHD_REMEDIATION_MODE"
    assert result.origin(("budget", "max_out")) == "environment HEALTHD_BUDGET_MAX_OUT"
    assert loaded(default, default=default).config.remediation.mode is Mode.REPAIR, (
        "a file that is named is the only one"
    )


def test_what_is_wrong_in_the_environment_of_the_service_names_the_file(tmp_path: Path) -> None:
    """A word that is no mode, a variable that is no setting, a file that is no text: each refused, with where."""
    default, at = tmp_path / "config.toml", tmp_path / "environment"
    at.write_text("HEALTHD_REMEDIATION_MODE=observ\nHEALTHD_REMEDIATION_MOD=observe\n")
    first, second = refused(None, default=default)
    assert first.startswith(f'{at}: HEALTHD_REMEDIATION_MOD = "observe": no such setting; did you mean')
    assert second.startswith(f'{at} HEALTHD_REMEDIATION_MODE: remediation.mode = "observ": expected')
    at.write_bytes(b"HEALTHD_REMEDIATION_MODE=\xff\n")
    assert "is not UTF-8" in refused(None, default=default)[0]
    at.unlink()
    at.symlink_to(at)
    assert refused(None, default=default)[0].startswith(f"{at}: cannot be read: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to read as another user")
def test_an_environment_of_the_service_that_may_not_be_read_is_a_notice(tmp_path: Path) -> None:
    """Whoever only looks goes on without it, and is told so."""
    at = write(tmp_path, "HEALTHD_REMEDIATION_MODE=observe\n", "environment")
    at.chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    os.seteuid(NOBODY)
    try:
        result = loaded(None, default=tmp_path / "config.toml")
    finally:
        os.seteuid(0)
    assert result.notices == (f"configuration: {at} cannot be read: Permission denied; its settings are missing here",)


def test_a_file_sets_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    """A key in the file wins over the default, the keys beside it keep theirs, and each knows its line."""
    path = write(
        tmp_path, '[remediation]\nmode = "repair"\n\n[checks."gpu.ecc"]\ninterval_s = 5\nmax_correctable = 3\n'
    )
    result = loaded(path)
    assert result.config.remediation.mode is Mode.REPAIR
    assert result.config.remediation.max_attempts == 2
    assert result.config.checks["gpu.ecc"].interval_s == 5.0
    assert result.config.checks["gpu.ecc"].settings.max_correctable == 3
    assert result.config.checks["gpu.xid"].interval_s is None
    assert result.origin(("remediation", "mode")) == f"{path}:2"
    assert result.origin(("checks", "gpu.ecc", "max_correctable")) == f"{path}:6"
    assert result.origin(("remediation", "max_attempts")) == "default"


def test_conf_d_wins_key_by_key_in_name_order(tmp_path: Path) -> None:
    """conf.d/*.toml come after config.toml, sorted by name; other names and hidden files are left alone."""
    default = write(tmp_path, '[daemon]\nworkers = 1\ngroup = "ops"\n')
    write(tmp_path, "[daemon]\nworkers = 3\n", "conf.d/20.toml")
    later = write(tmp_path, "[daemon]\nworkers = 4\n", "conf.d/30.toml")
    write(tmp_path, "not toml", "conf.d/40.toml.bak")
    write(tmp_path, "not toml", "conf.d/.50.toml")
    result = loaded(None, default=default)
    assert (result.config.daemon.workers, result.config.daemon.group) == (4, "ops")
    assert result.origin(("daemon", "workers")) == f"{later}:2"


def test_conf_d_is_read_without_a_config_toml(tmp_path: Path) -> None:
    """A package that drops one file into conf.d needs no config.toml beside it."""
    write(tmp_path, "[daemon]\nworkers = 3\n", "conf.d/20.toml")
    assert loaded(None, default=tmp_path / "config.toml").config.daemon.workers == 3


def test_a_named_file_is_the_only_file(tmp_path: Path) -> None:
    """--config FILE reads neither the default file nor a conf.d beside FILE."""
    path = write(tmp_path, "")
    write(tmp_path, "[daemon]\nworkers = 3\n", "conf.d/20.toml")
    assert loaded(path).config.daemon.workers == 4


def test_the_environment_wins_over_every_file(tmp_path: Path) -> None:
    """A HEALTHD_ variable beats the file, whatever the type of its key."""
    path = write(tmp_path, '[daemon]\nworkers = 1\n[remediation]\nmode = "repair"\n')
    result = loaded(
        path,
        HEALTHD_DAEMON_WORKERS="7",
        HEALTHD_REMEDIATION_MODE="quarantine",
        HEALTHD_BUDGET_MAX_OUT="3",
        HEALTHD_SOURCES_TRUST_USER_KMSG="true",
        HEALTHD_PROVISIONER_LOCAL_REBOOT_COMMAND='["true", "now"]',
        HEALTHD_CHECKS_GPU_ECC_INTERVAL_S="2.5",
        HEALTHD_NODE_NAME="7",
    )
    config = result.config
    assert (config.daemon.workers, config.remediation.mode, config.budget.max_out) == (7, Mode.QUARANTINE, 3)
    assert config.sources.trust_user_kmsg is True
    assert config.provisioner.local.reboot_command == ("true", "now")
    assert config.checks["gpu.ecc"].interval_s == 2.5
    assert config.node.name == "7"
    assert result.origin(("daemon", "workers")) == "environment HEALTHD_DAEMON_WORKERS"


def test_healthd_socket_is_the_daemons_socket_too() -> None:
    """Clients and daemon agree on HEALTHD_SOCKET; the full name wins where both are set."""
    assert loaded(None, HEALTHD_SOCKET="/a").config.daemon.socket == "/a"
    assert loaded(None, HEALTHD_SOCKET="/a", HEALTHD_DAEMON_SOCKET="/b").config.daemon.socket == "/b"


def test_what_kubernetes_sets_beside_a_service_is_no_mistake() -> None:
    """Service links of a Service named healthd are not misspelt settings."""
    address = "tcp://10.0.0.1:9809"
    links = {"HEALTHD_PORT": address, "HEALTHD_PORT_9809_TCP": address, "HEALTHD_WEB_SERVICE_PORT_HTTP": "80"}
    assert not load(None, checks=CHECKS, environ=links, default_path=NOWHERE).settings


# ---------------------------------------------------------------------------------------------------------------------
# what is refused


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """One wrong value hides no other: each is named with its line, key, value, what was expected and the next step."""
    text = '[remediation]\nmode = "reapir"\nmax_atempts = 3\n[daemon]\nworkers = 0\nhttp = "nowhere"\n'
    path = write(tmp_path, text)
    leave = "correct the value, or leave it out for the default"
    out = 'a whole number of at least 1 or a percentage such as "5%", not 0'
    modes = '"observe", "quarantine", "approve", "repair"'
    assert refused(path, HEALTHD_BUDGET_MAX_OUT="500%") == (
        f'{path}:2: remediation.mode = "reapir": expected one of {modes}; did you mean "repair"?',
        f"{path}:3: remediation.max_atempts: no such key; did you mean remediation.max_attempts?",
        f"{path}:5: daemon.workers = 0: expected a whole number from 1 to 64; {leave}",
        f'{path}:6: daemon.http = "nowhere": expected HOST:PORT with a port up to 65535, or ""; {leave}',
        f'environment HEALTHD_BUDGET_MAX_OUT: budget.max_out = "500%": expected {out}; {leave}',
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[remediaton]\n", "remediaton: no such key; did you mean remediation?"),
        ("mode = 'repair'\n", "mode: no such key; did you mean remediation.mode?"),
        ("[daemon]\nmode = 'repair'\n", "daemon.mode: no such key; did you mean remediation.mode?"),
        ("[daemon]\nzzzz = 1\n", "daemon.zzzz: no such key; see `healthd config show` for every key"),
        ("[remediation]\nenabled = 1\n", "remediation.enabled: no such key; see `healthd config show` for every key"),
        ("[remediation]\nkind = 'x'\n", "remediation.kind: no such key; see `healthd config show` for every key"),
        ("[ledger]\nenabld = 1\n", "ledger.enabld: no such key; did you mean ledger.enabled?"),
        ("[notify]\nsetle_s = 1\n", "notify.setle_s: no such key; see `healthd config show` for every key"),
        ("[budget]\nsetle_s = 1\n", "budget.setle_s: no such key; did you mean budget.settle_s?"),
        ('[checks."gpu.eec"]\n', 'checks."gpu.eec": no such check; did you mean checks."gpu.ecc"?'),
        ("[checks.gpu.ecc]\n", 'the name of a check is quoted: write [checks."gpu.ecc"]'),
        ("[gpu.ecc]\n", 'the settings of a check stand below checks: write [checks."gpu.ecc"]'),
        ('["gpu.ecc"]\n', 'the settings of a check stand below checks: write [checks."gpu.ecc"]'),
        ('[checks."gpu.ecc"]\nmax_correctible = 1\n', 'did you mean checks."gpu.ecc".max_correctable?'),
        ('[checks."gpu.ecc"]\nevery_s = 60\n', 'checks."gpu.ecc".every_s: no such key; see `healthd config show` for'),
        ("daemon = 3\n", "daemon = 3: expected a section, not a value; write [daemon] and its keys below"),
        ("[daemon]\nworkers = true\n", "daemon.workers = true: expected a whole number"),
        ("[daemon]\nworkers = 2.5\n", "daemon.workers = 2.5: expected a whole number"),
        ("[daemon]\nworkers = '4'\n", 'daemon.workers = "4": expected a whole number'),
        ("[daemon]\nsocket = 'run/x'\n", "expected an absolute path"),
        ("[remediation]\nsettle_s = nan\n", "expected seconds, more than 0"),
        ("[remediation]\nsettle_s = inf\n", "expected seconds, more than 0"),
        ("[remediation]\nsettle_s = -1\n", "expected seconds, more than 0"),
        (f"[daemon]\nworkers = 0x{'f' * 900}\n", "expected a whole number"),
        ("[budget]\nmax_out = 0\n", "expected a whole number of at least 1"),
        ("[budget]\nmax_out = '101%'\n", 'percentage such as "5%"'),
        ("[budget]\nmax_out = '0%'\n", 'percentage such as "5%", not 0'),
        ("[budget]\nmax_out = '00.0%'\n", 'percentage such as "5%", not 0'),
        ('[[budget.scope]]\nname = "cluster"\nmax_out = 9\n', "'cluster' is the whole fleet's; set budget.max_out"),
        ('[[budget.scope]]\nname = "a"\nmax_out = 9\n' * 2, "budget.scope: two have the name 'a'; keep one"),
        ('[[budget.scope]]\nname = ""\nmax_out = 9\n', 'budget.scope[0].name = "": expected letters, digits'),
        (
            '[[controller.drain]]\nname = "a"\nmode = "evict_after"\nafter_s = "10m"\n',
            "seconds, at most 2592000; did you mean 600?",
        ),
        ("[notify]\nwebhook_token_file = '/t'\n", "webhook_token_file is set, and no webhook; expected webhook_url"),
        ("[remediation]\nopt_out_label = 'a/b=true'\n", 'expected the key of a label, or ""'),
        (
            "[[remediation.freeze]]\nreason = 'x'\nstart = '2026-12-20T18:00Z'\nend = '2026-12-21T18:00Z'\nhours = 5\n",
            "give start and a later end, or cron and hours",
        ),
        ("[node]\nname = 2020-01-01\n", "node.name = 2020-01-01: expected letters"),
        ("[provisioner.local]\nreboot_command = 'reboot'\n", "expected a list, each element a text in quotes"),
        ('[checks."gpu.ecc"]\nmax_correctable = -1\n', "max_correctable is -1, expected at least 0"),
    ],
)
def test_a_mistake_says_what_was_expected(tmp_path: Path, text: str, says: str) -> None:
    """Every kind of wrong key and value is refused in one line that names what belongs there."""
    (problem,) = refused(write(tmp_path, text))
    assert says in problem
    assert str(tmp_path) in problem


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    """Editors on Windows begin a file with it. What is wrong behind it is marked at its own line."""
    path = write(tmp_path, b"\xef\xbb\xbf[node]\nname = 'gpu-1'\n")
    assert load(path, checks=CHECKS, environ={}).config.node.name == "gpu-1"
    assert refused(write(tmp_path, b"\xef\xbb\xbfmode = 'repair'\n"))[0].startswith(f"{path}:1: mode: no such key")
    assert "byte 0xff is not UTF-8" in refused(write(tmp_path, "name".encode("utf-16")))[0]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"[node]\nname = \n", ":2: not TOML: Invalid value"),
        (b"[node]\nname = 'a'\nname = 'b'\n", ":3: not TOML: Cannot overwrite a value; it is set twice: keep one"),
        (b"[node]\n[node]\n", ":2: not TOML: Cannot declare"),
        (b"[node]\nname = 'a", ":2: not TOML"),
        (b"a = " + b"[\n" * 5_000, ": not TOML: nested too deeply"),
        (b"[node]\nname = '\xff'\n", ":2: byte 0xff is not UTF-8"),
        (b"\0" * 100, ":1: not TOML"),
        (b"a." * 5_000 + b"a = 1", ":1: a line of 10005 characters"),
        (bytes(range(256)) * 4_096, f": larger than {MAX_BYTES} bytes"),
        (b"[" * (1 << 20), f": larger than {MAX_BYTES} bytes"),
    ],
    ids=[
        "no-value",
        "twice",
        "table-twice",
        "open-quote",
        "deep",
        "latin-1",
        "nul",
        "dots",
        "binary-1MB",
        "brackets-1MB",
    ],
)
def test_garbage_is_refused_clearly_and_quickly(tmp_path: Path, raw: bytes, says: str) -> None:
    """What is not TOML is told in one line, after well under a second of computing, whatever its size."""
    path = write(tmp_path, raw)
    began = time.process_time()
    (problem,) = refused(path)
    assert time.process_time() - began < 1.0
    assert says in problem
    assert len(problem) < 400


def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    """A directory, or a device, is refused before anything is read from it."""
    assert refused(tmp_path) == (f"{tmp_path}: not a regular file; expected a TOML file here",)
    assert "not a regular file" in refused(Path("/dev/zero"))[0]


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """Only the default file may be missing, and even that not behind a dangling link."""
    assert "No such file" in refused(tmp_path / "nowhere.toml")[0]
    link = tmp_path / "config.toml"
    link.symlink_to(tmp_path / "gone.toml")
    assert "No such file" in refused(None, default=link)[0]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """What the system refuses to open is told in the system's words, not skipped."""
    path = tmp_path / "config.toml"
    path.symlink_to(path)
    assert "cannot be read: Too many levels of symbolic links" in refused(None, default=path)[0]


def test_a_conf_d_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    """A file named conf.d would otherwise hide the settings that somebody meant to put there."""
    write(tmp_path, "", "conf.d")
    assert "cannot be listed" in refused(None, default=tmp_path / "config.toml")[0]


def test_endless_mistakes_are_cut_off(tmp_path: Path) -> None:
    """A file of thousands of wrong keys gives a list that can be read, and says that there may be more."""
    problems = refused(write(tmp_path, "".join(f"k{number} = 1\n" for number in range(3_000))))
    assert len(problems) == MAX_PROBLEMS + 1
    assert "there may be more" in problems[-1]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("HEALTHD_REMEDATION_MODE", "did you mean HEALTHD_REMEDIATION_MODE?"),
        ("HEALTHD_MAX_OUT", "did you mean HEALTHD_BUDGET_MAX_OUT?"),
        ("HEALTHD_CONFIG", "name the file by --config, and unset it"),
        ("HEALTHD_QQQ", "expected HEALTHD_<SECTION>_<KEY>; correct or unset it"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused(name: str, advice: str) -> None:
    """A HEALTHD_ variable that sets nothing is a mistake, told with the name it was meant to have."""
    assert refused(None, default=NOWHERE, **{name: "x"}) == (f'environment: {name} = "x": no such setting; {advice}',)


def test_a_variable_cannot_smuggle_further_keys_in() -> None:
    """A variable holds one value; what follows a line break in it is not read."""
    assert "expected a whole number" in refused(None, HEALTHD_DAEMON_WORKERS="2\ngroup = 'x'")[0]


def test_a_check_may_not_take_a_common_name(tmp_path: Path) -> None:
    """A check whose own setting is called `enabled` is refused by name, since the key would mean two things."""

    class Clash(Struct, frozen=True, kw_only=True):
        enabled: bool = True
        sub: EccSettings = field(default_factory=EccSettings)

    with pytest.raises(RegistrationError, match=r"'gpu.clash': .*Clash has \['enabled'\]"):
        load(write(tmp_path, "[node]\nname = 'a'\n"), checks={"gpu.clash": Clash}, environ={})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root is particular about who else may write")
@pytest.mark.parametrize("part", ["config.toml", "conf.d/a.toml", "conf.d", "environment"])
def test_root_reads_no_configuration_that_others_may_write(tmp_path: Path, part: str) -> None:
    """Who may write a file, or the folder that it is in, would order what root does: each is a problem that says so."""
    folder = tmp_path / "etc"
    (folder / "conf.d").mkdir(parents=True)
    for name in ("config.toml", "conf.d/a.toml", "environment"):
        (folder / name).write_text("")
    assert examine(None, checks={}, environ={}, default_path=folder / "config.toml").loaded is not None
    (folder / part).chmod(0o777)
    examined = examine(None, checks={}, environ={}, default_path=folder / "config.toml")
    (problem,) = examined.problems
    assert str(folder / part) in str(problem)
    assert "may be written by every user" in str(problem)
    assert "chown it to root" in str(problem)
