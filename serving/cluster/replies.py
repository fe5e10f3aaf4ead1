"""Errors of a Kubernetes API server: its ``Status`` objects as this project's errors.

Input: the HTTP status and the body, or the object of a watch's ERROR event; output: the error to raise.
``home/apiserver/status.py`` is the inverse.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.model.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Problem,
    TooManyRequests,
    Unavailable,
    Unsupported,
    UnsupportedMediaType,
)

_TEXT_LENGTH_MAX = 500

_BY_STATUS: dict[int, type[ClusterError]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    405: Unsupported,
    409: Conflict,
    410: Gone,
    415: UnsupportedMediaType,
    429: TooManyRequests,
    501: Unsupported,
}


class _StatusCause(msgspec.Struct):
    field: str = ""
    message: str = ""


class _StatusDetails(msgspec.Struct):
    causes: list[_StatusCause] | None = None


class _StatusReply(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _StatusDetails | None = None


def error_of(status: int, body: bytes, retry_after: str = "") -> ClusterError:
    """The error for a response with status 400 or more. ``retry_after`` is that header's text."""
    try:
        said = msgspec.json.decode(body, type=_StatusReply)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        text = body[:_TEXT_LENGTH_MAX].decode("utf-8", "replace").strip()
        said = _StatusReply(message=f"HTTP {status}: {text}" if text else f"HTTP {status} without a text")
    return _error(status, said, retry_after)


def event_error(status: Mapping[str, Any]) -> ClusterError:
    """The error in a watch's ERROR event."""
    try:
        said = msgspec.convert(status, type=_StatusReply)
    except msgspec.ValidationError:
        said = _StatusReply(message="the watch failed and did not say why")
    return _error(said.code or Unavailable.status, said, "")


def _error(status: int, said: _StatusReply, retry_after: str) -> ClusterError:
    message = said.message or f"HTTP {status} {said.reason}".strip()
    if status == AlreadyExists.status and said.reason == AlreadyExists.reason:
        return AlreadyExists(message)
    if status in _BY_STATUS:
        wait = f" (asked to wait {retry_after} s)" if retry_after and status == TooManyRequests.status else ""
        return _BY_STATUS[status](message + wait)
    if 400 <= status < 500 and status != 408:
        causes = (said.details.causes if said.details else None) or []
        return Invalid(
            message, [Problem(where=cause.field, what=cause.message, expected="see the message") for cause in causes]
        )
    return Unavailable(f"{message} (asked to wait {retry_after} s)" if retry_after else message)
