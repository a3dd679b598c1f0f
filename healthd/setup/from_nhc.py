"""The requirements of an nhc.conf (LBNL Node Health Check 1.4.3), as sections of healthd's configuration. Pure.

Each line of nhc.conf becomes a setting, or a comment that says why none is needed or possible. Lines for some hosts
become a ``[[match]]``. Source: NHC's README, "Built-in Checks" and "Configuration File Syntax".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from getopt import GetoptError, getopt
from itertools import product

from msgspec import Struct, field

from healthd.config.match import holds
from healthd.config.values import toml_lines
from healthd.core.errors import ConfigError
from healthd.core.hostlist import unfolded
from healthd.core.name_lists import listed
from healthd.observe.text_lines import printable
from healthd.setup.survey import NETWORK_TYPES

_SHOWN = 400  # characters of a line of nhc.conf in its comment
_COMM = 15  # characters of a process's name that the kernel keeps
_UNITS = {"": 1 << 10, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_NO_SIZE = float(1 << 63)  # bytes: TOML has no such number
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B)?", re.IGNORECASE)
_HOSTS = re.compile(r"[\w.*?-]+")
_RANGE = re.compile(r"\{([\w.,\[\]-]+)\}")
_BETWEEN = re.compile(r",(?![^\[]*\])")  # not the commas of n[1,3]
_GLOB = re.compile(r"[*?]")
_VARIABLE = re.compile(r"(?:export\s+)?(\w+)=(.*)")
_ITSELF = "healthd does this by itself; nothing to set"
_PLUGIN = 'no counterpart; a plug-in can run it: [checks."plugin.run"]'
_NONE = "no counterpart"

_Key = tuple[str, str]
"""Check and setting."""
_LEAST: frozenset[_Key] = frozenset({("host.filesystems", "min_free_ratio"), ("host.memory", "min_total_bytes")})
"""Of several lines for a node the largest holds."""


class _NhcSetting(Struct, kw_only=True):
    """The settings for some hosts, and the comments on lines that set nothing, in their order."""

    values: dict[_Key, float] = field(default_factory=dict)
    lists: dict[_Key, tuple[str, ...]] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)

    def add(self, check: str, key: str, *more: str) -> None:
        """Append to a list, each element once."""
        self.lists[check, key] = tuple(dict.fromkeys((*self.lists.get((check, key), ()), *more)))

    def most(self, check: str, key: str, value: float) -> None:
        """Keep the largest of the values: the strictest of the lines."""
        self.values[check, key] = max(self.values.get((check, key), value), value)

    def keys(self) -> Set[_Key]:
        """The keys that it sets."""
        return self.values.keys() | self.lists.keys()

    def beside(self, others: Sequence[_NhcSetting]) -> _NhcSetting:
        """The same keys, each with what the others ask for as well: NHC runs every line that fits a node, and a key of
        a match stands in place of that of an earlier one."""
        made = _NhcSetting(values=dict(self.values))
        for part in (*others, self):
            for key in self.lists:
                if key in part.lists:
                    made.add(*key, *part.lists[key])
            for key in _LEAST & self.values.keys() & part.values.keys():
                made.most(*key, part.values[key])
        return made


def from_nhc(text: str, *, name: str) -> list[str]:
    """The lines of TOML. Raises ConfigError with every line that is none of nhc.conf, by its number, and for a file
    without a check."""
    parts: dict[str, _NhcSetting] = {"*": _NhcSetting()}
    problems = list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        hosts, bars, command = (word.strip() for word in stripped.partition("||"))
        where = f"{name}:{number}"
        if not (hosts and bars and command):
            problems.append(f"{where}: {stripped!r}: expected HOSTS || CHECK; is this an nhc.conf?")
            continue
        known, why = _matched(hosts)
        part = parts.setdefault(known, _NhcSetting())
        try:
            said = why or _translate(part, command)
        except ValueError as error:
            problems.append(f"{where}: {command!r}: {error}")
            continue
        part.comments += [f"# {where}: {printable(stripped)[:_SHOWN]}: {each}" for each in ([said] if said else [])]
    if not problems and not any(part.keys() or part.comments for part in parts.values()):
        problems.append(f"{name}: no line says HOSTS || CHECK; is this an nhc.conf?")
    if problems:
        raise ConfigError(tuple(problems))
    return list(_written(parts, name))


def _matched(hosts: str) -> tuple[str, str]:
    """The hosts as ``[[match]] host`` has them, and why they cannot be, or ""."""
    if hosts == "*" or _HOSTS.fullmatch(hosts):
        return hosts, ""
    if found := _RANGE.fullmatch(hosts):
        return found[1], ""
    return "*", "[[match]] knows no regular expression, no negation and no list by @; write its hosts as globs"


# ---------------------------------------------------------------------------------------------------------------------
# one line


def _translate(part: _NhcSetting, command: str) -> str:
    """Set what the line asks for; the comment on what is not set, or "". Raises ValueError for wrong arguments."""
    if found := _VARIABLE.fullmatch(command):
        return _variable(found[1], found[2])
    try:
        check, *words = shlex.split(command, comments=True)
    except ValueError as error:
        raise ValueError(f"quotes do not match: {error}") from error
    if translate := _TRANSLATIONS.get(check):
        return translate(part, words)
    if why := next((why for prefix, why in _COMMENTS.items() if check.startswith(prefix)), ""):
        return why
    return _PLUGIN


def _variable(name: str, value: str) -> str:
    if name == "MARK_OFFLINE" and value.strip("\"'") == "0":
        return "mode observe, the default, takes no node out"
    return "a setting of NHC itself; healthd has its own"


def _cpuinfo(part: _NhcSetting, words: Sequence[str]) -> str:
    sockets, cores, threads = [*map(_whole, words), 0, 0, 0][:3]
    for key, value in (("sockets", sockets), ("count", threads)):
        if value:
            part.values["host.cpu", key] = value
    return "count has the threads; cores have no setting of their own" if cores and cores != threads else ""


def _physmem(part: _NhcSetting, words: Sequence[str]) -> str:
    least, most, *fudge = [*words, "0", "0"][: max(2, len(words))]
    size = _bytes(least)
    allowed = fudge[0] if fudge else "0"
    lessened = size * (1 - _share(allowed)) if allowed.endswith("%") else size - _bytes(allowed)
    if size:
        part.most("host.memory", "min_total_bytes", max(0, int(lessened)))
    return "healthd has no upper limit" if _bytes(most) and most != least else ""


def _swap(part: _NhcSetting, words: Sequence[str]) -> str:
    least, most = (_bytes(word) for word in [*words, "0", "1T"][:2])
    if most == 0:
        part.values["host.memory", "swap"] = False
        return ""
    if least:
        part.values["host.memory", "swap"] = True
        return "swap must be on; its size has no setting"
    return "any amount is allowed; nothing to set"


def _interface(part: _NhcSetting, words: Sequence[str]) -> str:
    (device,) = _exactly(words, 1, "one interface")
    if device == "lo":
        return "the loopback interface is not checked"
    part.add("host.network", "interfaces", device)
    return ""


def _mount(part: _NhcSetting, words: Sequence[str], *, writable: bool | None = None) -> str:
    if words and words[0].startswith("/"):  # the old form: MOUNT_POINT [SOURCE [TYPE [OPTIONS]]]
        words = [part for pair in zip(("-f", "-s", "-t", "-o"), words, strict=False) for part in pair if pair[1]]
    options, points = _options("0rE:F:O:e:f:o:s:t:", words)
    points = [_mount_point(point) for point in (*options.get("f", ()), *options.get("F", ()), *points)]
    if not points or not all(len(point.split()) == 1 for point in points):
        raise ValueError(f"expected a mount point without blanks; got {points or 'none'}")
    fstype, source = _plain(options, "t"), _plain(options, "s")
    is_remote = fstype in NETWORK_TYPES and fstype != "lustre"  # which has a check of its own
    for point in points:
        if fstype == "lustre":
            part.add("lustre.mount", "mounts", point)
            if writable is False:
                part.add("lustre.mount", "read_only", point)
            continue
        part.add(
            "host.expect", "mounts", " ".join((point, *((fstype, *((source,) if source else ())) if fstype else ())))
        )
        if writable and not is_remote:
            part.add("host.filesystems", "writable", point)
    unset = [
        *(["options (-o) are not compared"] if "o" in options else []),
        *(
            ["a pattern of a type or source is not compared"]
            if {"t", "s"} & set(options) - _set(fstype, source)
            else []
        ),
        *(["healthd remounts nothing (-r, -O, -e, -E)"] if {"r", "O", "e", "E"} & set(options) else []),
        *(["that a network file system takes writes is not checked"] if is_remote and writable else []),
    ]
    return "; ".join(unset)


def _set(fstype: str, source: str) -> set[str]:
    """The options that the entry has: a source stands behind a type only."""
    return {*(["t"] if fstype else []), *(["s"] if fstype and source else [])}


def _plain(options: Mapping[str, Sequence[str]], option: str) -> str:
    """The value of an option if it is no pattern, else ""."""
    value = next(iter(options.get(option, ())), "")
    return value if re.fullmatch(r"[\w@:./,-]+", value) and not re.fullmatch(r"/.*/", value) else ""


def _mount_point(word: str) -> str:
    """Without a / at its end, as the kernel lists it."""
    if not word.startswith("/"):
        raise ValueError(f"expected a mount point that begins with /; got {word!r}")
    return word.rstrip("/") or "/"


def _space(part: _NhcSetting, words: Sequence[str], *, used: bool) -> str:
    point, limit = _exactly(words[:2], 2, "a mount point and a limit")
    part.add("host.filesystems", "must_have_room", _mount_point(point))
    if not limit.endswith("%"):
        return "must have room; a limit in bytes or inodes has no setting, min_free_ratio is a share"
    share = _share(limit)
    part.most("host.filesystems", "min_free_ratio", round(1 - share if used else share, 4))
    return ""


def _service(part: _NhcSetting, words: Sequence[str]) -> str:
    options, services = _options("0E:SVcd:e:fkm:rsu:v", words)
    (service,) = _exactly(services, 1, "one service")
    if {"s", "k", "E"} & set(options):
        return "a service that must not run (-s, -k, -E) has no setting; host.expect has forbidden_processes"
    part.add("host.services", "required", service if "." in service else f"{service}.service")
    acts = {"r", "S", "c", "e"} & set(options)
    return "healthd starts and stops no service; systemd can (Restart=)" if acts else ""


def _process(part: _NhcSetting, words: Sequence[str], *, key: str) -> str:
    if not words or words[0].startswith("-"):
        raise ValueError("expected the name of a process")
    name = words[0].rpartition("/")[2]
    part.add("host.expect", key, name[:_COMM])
    return f"the kernel keeps {_COMM} characters of a name" if len(name) > _COMM else ""


def _socket(part: _NhcSetting, words: Sequence[str]) -> str:
    options, _ = _options("!0ad:l:n:p:r:s:t:u:e:E:", words)
    local = next(iter(options.get("l", ())), "")
    port = local.rpartition(":")[2]
    if "!" in options or not port.isdigit() or next(iter(options.get("p", ("tcp",)))) != "tcp":
        return "only a TCP port that must listen has a setting: host.reach"
    part.add("host.reach", "ports", f"127.0.0.1:{port}")
    return ""


_TRANSLATIONS: Mapping[str, Callable[[_NhcSetting, Sequence[str]], str]] = {
    "check_hw_cpuinfo": _cpuinfo,
    "check_hw_physmem": _physmem,
    "check_hw_swap": _swap,
    "check_hw_eth": _interface,
    "check_fs_mount": _mount,
    "check_fs_mount_rw": lambda part, words: _mount(part, words, writable=True),
    "check_fs_mount_ro": lambda part, words: _mount(part, words, writable=False),
    "check_fs_used": lambda part, words: _space(part, words, used=True),
    "check_fs_iused": lambda part, words: _space(part, words, used=True),
    "check_fs_free": lambda part, words: _space(part, words, used=False),
    "check_fs_ifree": lambda part, words: _space(part, words, used=False),
    "check_ps_service": _service,
    "check_ps_daemon": lambda part, words: _process(part, words, key="processes"),
    "check_ps_blacklist": lambda part, words: _process(part, words, key="forbidden_processes"),
    "check_net_socket": _socket,
}
_COMMENTS: Mapping[str, str] = {
    "check_nv": f"{_ITSELF}: gpu.* reads NVML, kernel.xid the kernel log",
    "check_hw_mcelog": f"{_ITSELF}: kernel.host reads machine checks",
    "check_hw_ib": f"{_NONE}: InfiniBand is not read, EFA is (efa.devices)",
    "check_hw_gm": f"{_NONE}: Myrinet is not read",
    **dict.fromkeys(
        ("check_hw_mem", "check_hw_physmem_free", "check_hw_swap_free"),
        f"{_NONE}: host.memory warns of pressure, not of an amount",
    ),
    "check_fs_": f"{_NONE}: host.filesystems judges the share that is free",
    "check_ps_": f"{_NONE}: what users' processes consume is the job's",
    "check_moab": f"{_NONE}: Moab is no orchestrator of healthd",
}


# ---------------------------------------------------------------------------------------------------------------------
# words


def _options(letters: str, words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The options by letter with their values, and the other words. ``letters``: as NHC gives them to getopts."""
    try:
        pairs, others = getopt(list(words), letters)
    except GetoptError as error:
        raise ValueError(str(error)) from error
    options = dict[str, list[str]]()
    for option, value in pairs:
        options.setdefault(option[1:], []).append(value)
    return options, others


def _exactly(words: Sequence[str], count: int, what: str) -> Sequence[str]:
    if len(words) != count:
        raise ValueError(f"expected {what}; got {' '.join(words) or 'nothing'}")
    return words


def _whole(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 9):
        raise ValueError(f"expected a whole number; got {word!r}")
    return int(word)


def _bytes(word: str) -> int:
    """A size as NHC writes it: ``256GB``, ``64G``, a plain number in kB."""
    found = _SIZE.fullmatch(word)
    size = float(found[1]) * _UNITS[found[2].upper()] if found else _NO_SIZE
    if size >= _NO_SIZE:
        raise ValueError(f"expected a size such as 256GB; got {word!r}")
    return int(size)


def _share(word: str) -> float:
    if not (found := re.fullmatch(r"(\d{1,3}(?:\.\d+)?)%", word)) or float(found[1]) > 100:
        raise ValueError(f"expected a share such as 10%; got {word!r}")
    return float(found[1]) / 100


# ---------------------------------------------------------------------------------------------------------------------
# the file


def _written(parts: Mapping[str, _NhcSetting], name: str) -> Iterator[str]:
    yield f"# From {printable(name)}: the requirements of NHC as settings. A line that sets nothing is a comment."
    yield from _sections(parts["*"], "")
    yield from (line for part in parts.values() for line in part.comments)
    own = {hosts: part for hosts, part in parts.items() if hosts != "*" and part.keys()}
    wider = {hosts: [each for each in own if each != hosts and _covers(each, hosts)] for hosts in own}
    before = list[str]()
    # Of a node's matches the last decides, so the wider ones come first.
    for hosts in sorted(own, key=lambda each: len(wider[each])):
        part = own[hosts]
        shared = [
            each
            for each in before
            if each not in wider[hosts] and own[each].keys() & part.keys() and _may_share(each, hosts)
        ]
        yield ""
        if shared:
            yield f"# A node that is also one of {listed(shared)} gets this list alone: add what such a node needs."
        yield from ("[[match]]", f"host = {toml_lines(re.split(_BETWEEN, hosts))}")
        around = [parts["*"], *(own[each] for each in before if each in wider[hosts])]
        yield from _sections(part.beside(around), "match.")
        before.append(hosts)


def _covers(wide: str, narrow: str) -> bool:
    """Whether every host of ``narrow`` is one of ``wide``."""
    return all(_fits(wide, name) for name in unfolded(narrow))


def _may_share(one: str, other: str) -> bool:
    """Whether a host may be of both."""
    if any(_fits(one, name) for name in unfolded(other)) or any(_fits(other, name) for name in unfolded(one)):
        return True
    heads = ([_GLOB.split(name)[0] for name in unfolded(hosts) if _GLOB.search(name)] for hosts in (one, other))
    return any(each.startswith(head) or head.startswith(each) for each, head in product(*heads))


def _fits(hosts: str, name: str) -> bool:
    return any(holds("host", pattern, name) for pattern in re.split(_BETWEEN, hosts))


def _sections(part: _NhcSetting, prefix: str) -> Iterator[str]:
    settings: dict[_Key, object] = {**part.values, **{key: list(each) for key, each in part.lists.items()}}
    for check in dict.fromkeys(check for check, _ in settings):
        yield from ("", f'[{prefix}checks."{check}"]')
        yield from (f"{key} = {toml_lines(value)}" for (owner, key), value in settings.items() if owner == check)
