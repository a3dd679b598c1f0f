"""Reading the configuration: files, the sections that match this node, then environments; every problem reported.

The caller passes the classes of the checks' own settings, so nothing here imports a check, and the facts of the node.
Nothing here prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from healthd.config import environment
from healthd.config.key_lines import Key, key_lines, line_of
from healthd.config.keys import (
    ALIASES,
    PREFIX,
    Allowed,
    ConfigLocation,
    Setting,
    allowed_table,
    checked,
    dotted,
    leaves,
    variables,
)
from healthd.config.match import MODE, NAME, Match, NodeFacts, Ruling, decide, read_matches
from healthd.config.schema import config as schema
from healthd.config.toml_text import Problem, parsed, read_text
from healthd.config.values import close_match, shortened
from healthd.core.errors import ConfigError
from healthd.core.model import MODE_RANK, Mode

DEFAULT_PATH = Path("/etc/healthd/config.toml")
MAX_PROBLEMS = 50

_NO_SETTINGS = {"HEALTHD_CONFIG": "name the file by --config, and unset it"}

# The variables that Kubernetes sets in every pod beside a Service named healthd or healthd-something (kubernetes.io,
# "Accessing the Service", environment variables): they are no misspelt settings.
_SERVICE_LINK = r"HEALTHD(_\w+)?_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)"

# The facts of this node, for the [sources] of a configuration.
WhoIsThis = Callable[[schema.Config], NodeFacts]


class Loaded(Struct, frozen=True, kw_only=True):
    """A valid configuration. ``settings``: what is given; all else has its default.

    ``rulings``: for every match section, whether it holds here; ``notices``: the sections that could not be decided.
    ``is_decided``: whether there are none. ``lowest``: the lowest mode that one of them may have, if it is lower than
    that of ``config``. ``by_job``: those that hold here while a certain job is on the node, in their order; none where
    an environment sets the mode.
    """

    config: schema.Config
    settings: Mapping[Key, Setting]
    rulings: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    is_decided: bool = True
    lowest: Setting | None = None
    by_job: tuple[Match, ...] = ()

    def cautious(self) -> tuple[schema.Config, tuple[str, ...]]:
        """The configuration for the daemon of this node, which acts on it, and its notices: in the lowest mode that is
        possible, until every match can be decided."""
        if self.lowest is None:
            return self.config, self.notices
        mode = self.lowest.value
        until = f"configuration: until that is known the mode is {mode}: {self.lowest.origin} may hold here"
        remediation = replace(self.config.remediation, mode=mode)
        return replace(self.config, remediation=remediation), (*self.notices, until)

    def origin(self, key: Key) -> str:
        """The place of a value: ``/etc/healthd/config.toml:3``, ``environment HEALTHD_…`` or ``default``."""
        return self.settings[key].origin if key in self.settings else "default"


class Examined(Struct, frozen=True, kw_only=True):
    """The outcome of reading: ``loaded`` is None exactly when there are problems.

    ``texts`` holds each file that could be read, for the report's marks.
    """

    loaded: Loaded | None
    problems: tuple[Problem, ...]
    texts: Mapping[str, str]


def load(
    path: Path | None,
    *,
    checks: Mapping[str, type],
    environ: Mapping[str, str],
    default_path: Path = DEFAULT_PATH,
    who: WhoIsThis | None = None,
) -> Loaded:
    """Read the configuration, or raise ConfigError with every problem. Arguments as for :func:`examine`."""
    examined = examine(path, checks=checks, environ=environ, default_path=default_path, who=who)
    if examined.loaded is None:
        raise ConfigError(tuple(str(problem) for problem in examined.problems))
    return examined.loaded


def examine(
    path: Path | None,
    *,
    checks: Mapping[str, type],
    environ: Mapping[str, str],
    default_path: Path = DEFAULT_PATH,
    who: WhoIsThis | None = None,
) -> Examined:
    """Read the configuration and report every mistake in it.

    ``path``: the only file to read, which must exist; None reads ``default_path``, if it exists, and ``conf.d/`` beside
    it; a later file wins key by key. ``checks``: each check's name and settings class. ``environ``: its
    HEALTHD_<SECTION>_<KEY> variables win over every file. Where ``path`` is None, the file ``environment`` beside it,
    which systemd gives to the daemon alone, wins over the other files, and ``environ`` over it. ``who``: decides which
    match sections hold; without it none does, and all are still checked for mistakes.
    """
    texts: dict[str, str] = {}
    matches: list[Match] = []
    problems: list[Problem] = []
    notices: list[str] = []
    allowed = cache(lambda: allowed_table(checks))
    files = _settings(_files(path, default_path, allowed, texts), matches, problems)
    beside = default_path.with_name(environment.NAME)
    service = _service(beside, environ, allowed, notices) if path is None else ()
    fixed = _settings(chain(service, _environment(environ, allowed)), matches, problems)

    def assembled(laid: Iterable[Setting]) -> Loaded | None:
        return _assembled(checks, {**files, **{setting.key: setting for setting in laid}, **fixed}, problems)

    loaded = None if problems else assembled(())
    if loaded is not None and matches:
        for match in matches:
            assembled(match.settings)
        problems += _without_jobs(loaded.config.orchestrator.kind, matches)
        loaded = None if problems else _matched(loaded, matches, who, assembled, fixed)
    if loaded is not None and notices:
        loaded = replace(loaded, notices=(*notices, *loaded.notices))
    return Examined(loaded=loaded, problems=tuple(problems), texts=texts)


NO_JOBS = "only Slurm tells healthd which job is on a node"


def _without_jobs(kind: str, matches: Iterable[Match]) -> list[Problem]:
    """The matches by job where no orchestrator tells the jobs."""
    if kind != "kubernetes":
        return []
    advice = "remove its job_ conditions, or match by label"
    return [Problem(source=each.place, wrong=NO_JOBS, advice=advice) for each in matches if each.is_by_job]


def _matched(
    plain: Loaded,
    matches: Iterable[Match],
    who: WhoIsThis | None,
    assembled: Callable[[Iterable[Setting]], Loaded | None],
    fixed: Mapping[Key, Setting],
) -> Loaded | None:
    """``plain``, which holds everywhere, overlaid by the matches that hold here, the last one on top.

    ``fixed``: the settings of an environment. ``assembled`` lays them over everything; a match by job of such a key has
    no part.
    """
    if who is None:
        return replace(plain, notices=("configuration: no match section is applied: the node is not known here",))
    rulings = tuple(_unless_fixed(each, fixed) for each in decide(matches, who(plain.config)))
    holding = [each.match for each in rulings if each.holds]
    loaded = assembled(setting for match in holding if not match.is_by_job for setting in match.settings)
    if loaded is None:
        return None
    undecided = tuple(f"configuration: {each}" for each in rulings if not each.decided)
    by_job = tuple(match for match in holding if match.is_by_job)
    return replace(
        loaded,
        rulings=tuple(map(str, rulings)),
        notices=undecided,
        is_decided=not undecided,
        lowest=None if MODE in fixed else _lowest_possible(rulings, loaded.config.remediation.mode),
        by_job=by_job,
    )


def _lowest_possible(rulings: Iterable[Ruling], mode: Mode) -> Setting | None:
    """The lowest mode of the matches that may hold and that no later one overrides, where it is lower than the mode
    without them: a node that you wanted to protect must not be taken out while slurmctld does not answer."""
    lowest: Setting | None = None
    for ruling in rulings:
        given = next((each for each in ruling.match.settings if each.key == MODE), None)
        if given is None:
            continue
        if ruling.holds and not ruling.match.is_by_job:
            lowest = None
        elif not ruling.decided and MODE_RANK[given.value] < MODE_RANK[mode if lowest is None else lowest.value]:
            lowest = given
    return lowest


def _unless_fixed(ruling: Ruling, fixed: Mapping[Key, Setting]) -> Ruling:
    """The ruling; one by job does not hold where an environment sets its key."""
    origins = [fixed[each.key].origin for each in ruling.match.settings if each.key in fixed]
    if not origins or not ruling.match.is_by_job:
        return ruling
    return replace(ruling, holds=False, decided=True, why=f"{origins[0]} sets the mode, whichever job is on the node")


def checks_in_files(path: Path | None) -> frozenset[str]:
    """The names under ``checks`` in the files, whether there is such a check or not. ``path``: as of ``examine``, which
    reports what cannot be read; here it names none."""
    paths = [path] if path is not None else [DEFAULT_PATH, *DEFAULT_PATH.parent.glob("conf.d/*.toml")]
    found: set[str] = set()
    for each in paths:
        with suppress(OSError):
            text = read_text(each)
            tree = parsed(text, str(each)) if isinstance(text, str) else text
            found.update(_named(tree) if isinstance(tree, dict) else ())
    return frozenset(found)


def _named(tree: Mapping[str, Any]) -> Iterator[str]:
    """The names under ``checks``, of the file itself and of its matches."""
    matches = tree.get(NAME)
    for table in (tree, *(matches if isinstance(matches, list) else ())):
        checks = table.get("checks") if isinstance(table, dict) else None
        yield from checks if isinstance(checks, dict) else ()


def _settings(
    items: Iterable[Setting | Match | Problem], matches: list[Match], problems: list[Problem]
) -> dict[Key, Setting]:
    """The settings among these; a later one wins. Matches and problems are added to the lists."""
    settings: dict[Key, Setting] = {}
    for item in items:
        if len(problems) > MAX_PROBLEMS:
            break
        if isinstance(item, Setting):
            settings[item.key] = item
        elif isinstance(item, Match):
            matches.append(item)
        else:
            problems.append(item)
            if len(problems) == MAX_PROBLEMS:
                more = f"reading stopped after {MAX_PROBLEMS} problems; there may be more"
                problems.append(Problem(source="configuration", wrong=more, advice="correct these first"))
    return settings


# ---------------------------------------------------------------------------------------------------------------------
# places of values


def _files(
    path: Path | None, default_path: Path, allowed: Allowed, texts: dict[str, str]
) -> Iterator[Setting | Match | Problem]:
    """The settings of the files, those with the lowest precedence first."""
    if path is not None:
        yield from _file(path, allowed, texts)
    else:
        yield from _file(default_path, allowed, texts, may_be_missing=True)
        yield from _folder(default_path.parent / "conf.d", allowed, texts)


def _folder(folder: Path, allowed: Allowed, texts: dict[str, str]) -> Iterator[Setting | Match | Problem]:
    try:
        names = sorted(item.name for item in folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        wrong = f"cannot be listed: {error.strerror}"
        yield Problem(source=str(folder), wrong=wrong, advice="expected a folder that healthd's user may read")
        return
    for name in names:
        if name.endswith(".toml") and not name.startswith("."):
            yield from _file(folder / name, allowed, texts)


def _file(
    path: Path, allowed: Allowed, texts: dict[str, str], *, may_be_missing: bool = False
) -> Iterator[Setting | Match | Problem]:
    try:
        text = read_text(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and may_be_missing and not path.is_symlink():
            return
        advice = "check the path, and the permissions for healthd's user"
        yield Problem(source=str(path), wrong=f"cannot be read: {error.strerror}", advice=advice)
        return
    if isinstance(text, Problem):
        yield text
        return
    texts[str(path)] = text
    tree = parsed(text, str(path))
    if isinstance(tree, Problem):
        yield tree
        return
    lines = cache(lambda: key_lines(text))
    if NAME in tree:
        yield from read_matches(tree.pop(NAME), str(path), lines, allowed)
    for key, value, hint in leaves(tree, allowed() if tree else {}, ()):
        place = ConfigLocation(source=str(path), line=line_of(lines(), key))
        row_line = partial(line_of, lines())
        yield from checked(key, value, hint, place=place, allowed=allowed, line_of_row=row_line)


def _service(
    path: Path, environ: Mapping[str, str], allowed: Allowed, notices: list[str]
) -> Iterator[Setting | Problem]:
    """The settings of the daemon unit's environment file, but for those in ``environ``, which are the daemon's own. A
    user who may not read the file gets a notice."""
    try:
        text = read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError as error:
        notices.append(f"configuration: {path} cannot be read: {error.strerror}; its settings are missing here")
        return
    except OSError as error:
        advice = "fix or remove it: its lines win over every other file"
        yield Problem(source=str(path), wrong=f"cannot be read: {error.strerror}", advice=advice)
        return
    if isinstance(text, Problem):
        yield text
    else:
        mine = {name: value for name, value in environment.service_variables(text).items() if name not in environ}
        yield from _environment(mine, allowed, str(path))


def _environment(
    environ: Mapping[str, str], allowed: Allowed, source: str = "environment"
) -> Iterator[Setting | Problem]:
    """The settings of HEALTHD_ variables. An alias comes before its full name, so the full name wins."""
    mine = sorted(name for name in environ if name.startswith(PREFIX))
    if not mine:
        return
    known = variables(allowed(), ())
    for name in sorted(mine, key=lambda name: name not in ALIASES):
        if name in known:
            key, hint = known[name]
            place = ConfigLocation(source=f"{source} {name}")
            yield from checked(key, environ[name], hint, place=place, from_environment=True, allowed=allowed)
        elif not re.fullmatch(_SERVICE_LINK, name):
            advice = _advice_about(name, known)
            value = shortened(environ[name])
            yield Problem(source=source, value=value, key=name, wrong="no such setting", advice=advice)


def _advice_about(name: str, known: Iterable[str]) -> str:
    """About a variable that sets nothing: the only one whose key has this name, else the most similar one."""
    if name in _NO_SETTINGS:
        return _NO_SETTINGS[name]
    word, words = name.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in known]
    alike = [each for each in words if each.endswith(f"_{word}")]
    meant = alike[0] if len(alike) == 1 else close_match(word, words)
    return f"did you mean {PREFIX}{meant}?" if meant else "expected HEALTHD_<SECTION>_<KEY>; correct or unset it"


# ---------------------------------------------------------------------------------------------------------------------
# putting it together


def _assembled(checks: Mapping[str, type], settings: Mapping[Key, Setting], problems: list[Problem]) -> Loaded | None:
    """The configuration. Mistakes that a settings class finds itself (``__post_init__``) are added to ``problems``."""
    sections = {key[:length] for key in settings for length in range(len(key))}

    def build(default: Struct, path: Key) -> Any:
        """A section with the settings that are given; the others keep their defaults."""
        if path not in sections:
            return default
        values: dict[str, Any] = {}
        for name in default.__struct_fields__:
            key, plain = (*path, name), getattr(default, name)
            if isinstance(plain, Struct):
                values[name] = build(plain, key)
            else:
                values[name] = settings[key].value if key in settings else plain
        try:
            return type(default)(**values)
        except ValueError as error:
            source = ", ".join(sorted({item.origin for key, item in settings.items() if key[: len(path)] == path}))
            problems.append(Problem(source=source, key=dotted(path), wrong=str(error), advice="correct the values"))
            return None

    tables = {
        name: build(schema.CheckConfig(settings=build(cls(), ("checks", name))), ("checks", name))
        for name, cls in checks.items()
    }
    config = build(schema.Config(checks=tables), ())
    return None if problems else Loaded(config=config, settings=settings)
