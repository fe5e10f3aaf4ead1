"""The exceptions of the whole project, grouped by who must act.

docs/errors.md shows the tree and the remedies. A class attribute is the HTTP status of an error that clients get.
Errors have fields, from which their text is built.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Exceptions of a msgspec decoder: wrong types, invalid UTF-8, or nesting that is too deep."""


class ServingError(Exception):
    """Root of all errors that this project raises on purpose."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem in a user's input.

    ``where`` names the file and line, environment variable, flag or annotation; ``what`` describes the invalid value
    found there; ``expected`` describes a valid one.
    """

    where: str
    what: str
    expected: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; expected {self.expected}"


class SettingsError(ServingError):
    """Unusable settings. ``problems`` has every problem, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def of(cls, where: str, what: str, expected: str) -> "SettingsError":
        """The error for a single problem."""
        return cls([Problem(where=where, what=what, expected=expected)])


class InvalidValue(ServingError, ValueError):
    """A value that cannot be parsed. ``expected`` completes the sentence "expected ..."."""

    def __init__(self, *, text: str, expected: str) -> None:
        self.text = text
        self.expected = expected
        super().__init__(f"{text!r} is not {expected}")


class NewerFormat(InvalidValue):
    """A frame, message or file in a newer format than this program reads. ``action`` tells the operator what to do."""

    def __init__(self, *, what: str, version: int, known: int, action: str) -> None:
        self.what = what
        self.version = version
        self.known = known
        self.action = action
        super().__init__(
            text=f"{what} of format {version}", expected=f"readable here: this program knows up to {known}; {action}"
        )

    def __str__(self) -> str:
        return f"{self.what}: format {self.version}, and this program knows up to {self.known}; {self.action}"


class ClusterError(ServingError):
    """The API server did not carry out a request. ``reason`` and ``status`` are the server's."""

    status: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"

    def __init_subclass__(cls, *, status: int | None = None, reason: str = "") -> None:
        if status is not None:
            cls.status, cls.reason = status, reason or cls.__name__


class NotFound(ClusterError, status=404):
    """The object does not exist."""


class AlreadyExists(ClusterError, status=409):
    """An object of that name exists."""


class Conflict(ClusterError, status=409):
    """The object has changed since it was read, or was replaced. Read it again and retry."""


class OwnedField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a server-side apply that another field manager owns. ``manager`` is quoted for messages."""

    path: str
    manager: str


class ApplyConflict(Conflict):
    """Other managers own the fields in ``fields``, with other values. Apply with force, or omit these fields."""

    def __init__(self, fields: Sequence[OwnedField]) -> None:
        self.fields = tuple(fields)
        if len(self.fields) == 1:
            (field,) = self.fields
            super().__init__(f"Apply failed with 1 conflict: conflict with {field.manager}: {field.path}")
            return
        by_manager: dict[str, list[str]] = {}
        for field in self.fields:
            by_manager.setdefault(field.manager, []).append(f"- {field.path}")
        parts = [f"conflicts with {manager}:\n" + "\n".join(lines) for manager, lines in by_manager.items()]
        super().__init__(f"Apply failed with {len(self.fields)} conflicts: " + "\n".join(parts))


class Invalid(ClusterError, status=422):
    """The object breaks its schema or a rule; ``problems`` lists every violation."""

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)


class Gone(ClusterError, status=410, reason="Expired"):
    """The resourceVersion is too old for a watch. List again."""


class Forbidden(ClusterError, status=403):
    """The caller lacks the permission. Never retry."""


class Unsupported(ClusterError, status=501, reason="NotImplemented"):
    """This server lacks a feature of the Kubernetes API."""


class UnsupportedMediaType(Unsupported, status=415):
    """The kind does not accept this patch type, such as a strategic merge patch of a custom resource."""


class Unavailable(ClusterError, status=503, reason="ServiceUnavailable"):
    """The server does not respond in time. Retry later."""


class TooManyRequests(Unavailable, status=429):
    """The server is busy, or a PodDisruptionBudget forbids an eviction. Retry later."""


class NotLeading(ClusterError, status=503):
    """This process does not hold the lease for this write, and sent nothing. The lease holder does the work."""

    def __init__(self, lease: str) -> None:
        self.lease = lease
        super().__init__(f"this process does not hold the lease {lease}, or not any more: nothing was written")


class CloudError(ServingError):
    """The cloud did not carry out a request of a node group. ``reason`` is the code for Events and metrics."""

    reason: ClassVar[str] = "CloudFailed"


class CloudRefused(CloudError):
    """The cloud refused a request because of a bound, a quota, no capacity or an unknown group. Do not retry early."""

    reason: ClassVar[str] = "CloudRefused"


class CloudUnavailable(CloudError):
    """The cloud does not respond, or throttles. The request may have taken effect: read the state, then retry."""

    reason: ClassVar[str] = "CloudUnavailable"


class InvalidCertificate(ServingError):
    """An unusable certificate or key. ``where`` names the file or Secret, ``reason`` the problem."""

    def __init__(self, *, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(f"{where}: {reason}")


class JournalDamaged(ServingError):
    """The store's journal has content that this program did not write. The file stays unchanged for inspection."""

    def __init__(self, *, path: str, detail: str) -> None:
        self.path = path
        self.detail = detail
        super().__init__(
            f"the journal {path} cannot be used: {detail}. The file is kept as it is: `serving doctor --repair` says what"
            " can be read of it; or move it away, then `serving restore FILE`"
        )


class IllegalTransition(ServingError):
    """An event that a state machine does not allow in its phase. ``story`` has the last transitions, oldest first."""

    def __init__(self, *, subject: str, phase: str, event: str, story: Sequence[str] = ()) -> None:
        self.subject = subject
        self.phase = phase
        self.event = event
        self.story = tuple(story)
        tail = f" after {' -> '.join(self.story)}" if self.story else ""
        super().__init__(f"{subject}: {event} in phase {phase}{tail}")
