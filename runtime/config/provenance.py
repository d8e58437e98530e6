"""Where a value came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Origin(StrEnum):
    """Who decided a value, weakest first; the names are printed."""

    DEFAULT = "default"
    GROUP_FILE = "group file"
    PROFILE_FILE = "profile file"
    USER_FILE = "user file"
    COMMAND_LINE = "command line"
    AUTO_ARM = "auto-arm"
    DERIVED = "derived"


@dataclass(frozen=True)
class Provenance:
    """`detail` is the file, the words as typed, or the reason. Secrets are never in it."""

    origin: Origin
    detail: str

    @property
    def source(self) -> str:
        """The origin's printed name: what verdicts and receipts call it."""
        return self.origin.value

    @property
    def text(self) -> str:
        return self.detail

    def __str__(self) -> str:
        return f"{self.origin.value} ({self.detail})" if self.detail else self.origin.value


BUILT_IN = Provenance(Origin.DEFAULT, "built in")
