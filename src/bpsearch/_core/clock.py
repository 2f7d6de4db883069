"""The time, as records have it."""

from datetime import UTC, datetime


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
