"""The clock, the salts and the defaults of the command line."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

DEFAULT_DB = Path("dpm.sqlite")
DEFAULT_BUDGET_CHARS = 1338  # the paper's tight budget: a twentieth of its trajectories
DEFAULT_TENANT = "default"


def now() -> str:
    """The current time, RFC 3339, UTC, microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def new_salt() -> bytes:
    """32 random bytes from the operating system."""
    return secrets.token_bytes(32)
