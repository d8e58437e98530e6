"""The exception tree of mtrun. Every message is one sentence that says what to type or send next."""

from __future__ import annotations


class MtrunError(Exception):
    """Base of every error that mtrun raises on purpose. `exit_code` is what a command ends with."""

    exit_code = 1


class ConfigurationError(MtrunError):
    """The composed configuration cannot be honoured: unknown key, range, contradiction."""

    exit_code = 2


class StampError(ConfigurationError):
    """A lane value was read before the auto-arm stamped it."""


class LaneError(ConfigurationError):
    """A lane that the user asked for cannot be installed or fails its proof."""


class PackError(ConfigurationError):
    """A pack is absent, malformed, incomplete, or not what it says it is."""


class AuditError(MtrunError):
    """A verdict differs from what `audit.require` or `--expect` demands."""


class RequestError(MtrunError):
    """One request cannot be honoured. `field` names the field at fault in the client's own words."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class CapacityError(MtrunError):
    """The queue is full or the memory limit would be passed. `retry_after` is in seconds, None = never."""

    def __init__(self, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineStoppedError(MtrunError):
    """The inference thread is not running: loading, shut down or dead."""
