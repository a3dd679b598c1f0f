"""The log of what runs as a service: JSON lines to stderr, for the journal or whoever collects it."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def json_logger(level: str) -> Any:
    """A structlog logger; ``level``: the least severe line that is written."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    return structlog.get_logger()
