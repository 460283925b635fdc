"""Structured logs: one JSON object per line, on stderr."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

__all__ = ["JsonFormatter", "log_to_stderr", "timestamp"]

_JSON = json.JSONEncoder(ensure_ascii=False, default=str)  # built once: building it takes longer than encoding a line
_OWN = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}


def timestamp(seconds: float) -> str:
    """Format seconds since 1970 as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: time, level, event, logger, and everything passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        entry = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        entry |= {key: value for key, value in vars(record).items() if key not in _OWN}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return _JSON.encode(entry)


def log_to_stderr(level: str) -> None:
    """Send the logs of this process to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
