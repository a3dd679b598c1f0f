"""``healthd init``: write a first configuration from the facts of this node. It never overwrites one."""

from __future__ import annotations

import os
import stat
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from healthd import __version__
from healthd.api.wire import Reply
from healthd.cli.daemon_verbs import START
from healthd.cli.settings import check_settings
from healthd.config.json_schema import FILE_NAME, config_schema_text
from healthd.config.load import DEFAULT_PATH, load
from healthd.core.errors import HealthdError, SourceError, UsageError
from healthd.core.json_documents import json_document
from healthd.daemon.textfile import written_beside
from healthd.setup.first_config import first_config, found_lines
from healthd.setup.forked_calls import answer_apart
from healthd.setup.survey import Survey, survey

SCHEMA = "healthd.init/v1"
_MOST_BYTES = 8 << 20  # of an nhc.conf: a hundred thousand lines
_DEADLINE_S = 40.0  # IMDS, one question to AWS, and a file system or two that answer late


def answer(options: Namespace) -> Reply:
    """Exit 0: written, or printed. Raises HealthdError where a configuration exists, or cannot be written."""
    path = Path(options.output or DEFAULT_PATH)
    if not options.print:
        _refuse_to_overwrite(path)
    required = _required(options.from_nhc)
    # The machine's variables and conf.d/ apply to the survey, as they apply to the daemon.
    config = load(None, checks=check_settings(), environ=os.environ, default_path=_beside(path)).config
    try:
        found = answer_apart(lambda: survey(config, os.environ), Survey, deadline_s=_DEADLINE_S)
    except SourceError as error:
        wrong = f"the survey of this machine did not end: {error}; `healthd doctor` shows what hangs"
        raise HealthdError(wrong) from error
    text = first_config(found, version=__version__, now=datetime.now(UTC), required=required)
    if options.print:
        return Reply(code=0, out=_json(text, found, "") if options.json else text)
    schema = _write(path, text)
    if options.json:
        return Reply(code=0, out=_json(text, found, str(path)))
    facts = "".join(f"  {line}\n" for line in found_lines(found))
    return Reply(code=0, out=f"wrote {path}, mode observe; {schema}\n{facts}{_next(path)}")


def _next(path: Path) -> str:
    """The next steps. A daemon reads a file elsewhere only by its name."""
    given = "" if path == DEFAULT_PATH else f" --config {path}"
    validate, doctor, run = (f"healthd {verb}{given}" for verb in ("config validate", "doctor", "run"))
    start = START if not given else f"`{run}`, or as a service once the file is {DEFAULT_PATH}"
    return f"next: read it, run `{validate}` and `{doctor}`; then the daemon: {start}\n"


def _required(name: str | None) -> Sequence[str] | None:
    """The lines that an nhc.conf becomes. Raises UsageError where it cannot be read, ConfigError for wrong lines."""
    if name is None:
        return None
    from healthd.setup.from_nhc import from_nhc  # only where it is asked for

    try:
        text = _nhc_text(Path(name))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--from-nhc {name}: {why}; expected an nhc.conf, such as /etc/nhc/nhc.conf") from error
    return from_nhc(text, name=Path(name).name)


def _nhc_text(path: Path) -> str:
    """The text of a file that ends. Raises OSError, ValueError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a regular file")
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES} bytes")
    return text.decode("utf-8", "replace")


def _json(text: str, found: Survey, path: str) -> str:
    """``written``: the file, or "" where it is only printed."""
    data = {"schema": SCHEMA, "written": path, "configuration": text, "found": list(found_lines(found))}
    return json_document(data)


def _beside(path: Path) -> Path:
    """An unused name in the same folder: conf.d/ beside it applies, an existing configuration does not."""
    return path.with_name(f".{path.name}.not-yet")


def _refuse_to_overwrite(path: Path) -> None:
    if os.path.lexists(path):
        raise HealthdError(
            f"{path} exists and is never overwritten; edit it, or compare it with `healthd init --print`"
        )


def _write(path: Path, text: str) -> str:
    """Write both files and return the line about the schema. A concurrent init fails with the same message."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _put(path, text)
    except OSError as error:
        if isinstance(error, FileExistsError):
            _refuse_to_overwrite(path)
        why = "run it as root, or name" if isinstance(error, PermissionError) else "name"
        wrong = f"cannot write {path}: {error.strerror}; {why} another file with --output"
        raise HealthdError(wrong) from error
    schema = path.with_name(FILE_NAME)
    try:
        _put(schema, config_schema_text(check_settings()))
    except FileExistsError:
        return f"kept {schema}; after an upgrade, `healthd config schema` prints the new one"
    except OSError as error:
        return f"cannot write {schema}, which only editors need: {error.strerror}"
    return f"{schema} is for editors"


def _put(path: Path, text: str) -> None:
    """Write the whole file or none, and never over another: link(2) fails where a file exists. Raises OSError."""
    with written_beside(path, text) as whole:
        os.link(whole, path)
