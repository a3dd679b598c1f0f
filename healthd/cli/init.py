"""``healthd init``: a first configuration, from what is found on this node. It never overwrites one."""

from __future__ import annotations

import os
from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path

from healthd import __version__
from healthd.api.wire import Reply
from healthd.cli.asking import START
from healthd.cli.settings import check_settings
from healthd.config.json_schema import FILE_NAME, config_schema_text
from healthd.config.load import DEFAULT_PATH, load
from healthd.core.errors import HealthdError, SourceError
from healthd.setup.apart import answer_apart
from healthd.setup.first_config import first_config, found_lines
from healthd.setup.survey import Survey, survey

_DEADLINE_S = 40.0  # IMDS, one question to AWS, and a file system or two that answer late


def answer(options: Namespace) -> Reply:
    """Exit 0: written, or printed. Raises HealthdError where a configuration is there, or cannot be written."""
    path = Path(options.output or DEFAULT_PATH)
    if not options.print:
        _refuse_to_overwrite(path)
    # What the machine's variables and conf.d/ say of where to look, as the daemon would take it.
    config = load(None, checks=check_settings(), environ=os.environ, default_path=_beside(path)).config
    try:
        found = answer_apart(lambda: survey(config, os.environ), Survey, deadline_s=_DEADLINE_S)
    except SourceError as error:
        wrong = f"this machine could not be looked at: {error}; see `healthd doctor` for what hangs"
        raise HealthdError(wrong) from error
    text = first_config(found, version=__version__, now=datetime.now(UTC))
    if options.print:
        return Reply(code=0, out=text)
    schema = _write(path, text)
    told = "".join(f"  {line}\n" for line in found_lines(found))
    return Reply(
        code=0,
        out=f"{path} is written, in mode observe; {schema}\n{told}"
        f"next: read it, then `healthd config validate` and `healthd doctor`; the daemon: {START}\n",
    )


def _beside(path: Path) -> Path:
    """A name that no file has in the same folder: conf.d/ beside it is read, a configuration that is there is not."""
    return path.with_name(f".{path.name}.not-yet")


def _refuse_to_overwrite(path: Path) -> None:
    if os.path.lexists(path):
        raise HealthdError(
            f"{path} is there already, and is never overwritten; edit it, or compare it with `healthd init --print`"
        )


def _write(path: Path, text: str) -> str:
    """Both files, and what became of the schema, in words. Another init at the same moment loses, and says so."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _put(path, text)
    except FileExistsError:
        _refuse_to_overwrite(path)
        raise
    except OSError as error:
        wrong = f"{path} cannot be written: {error.strerror}; run it as root, or name another file with --output"
        raise HealthdError(wrong) from error
    schema = path.with_name(FILE_NAME)
    try:
        _put(schema, config_schema_text(check_settings()))
    except FileExistsError:
        return f"{schema} was there already: after an upgrade, `healthd config schema` has the new one"
    except OSError as error:
        return f"{schema}, which is only for editors, could not be written: {error.strerror}"
    return f"{schema} is for editors"


def _put(path: Path, text: str) -> None:
    """The whole file or none, and never over another: a link is made only where nothing is. Raises OSError."""
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        whole.write_text(text, encoding="utf-8")
        os.link(whole, path)
    finally:
        whole.unlink(missing_ok=True)
