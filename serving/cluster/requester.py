"""The user on whose behalf a write runs, for annotations that record it.

The API server sets it for the time of a request. Writes of the system itself, such as those of the controllers in the same
process, have no user.
"""

import contextlib
import contextvars
from collections.abc import Iterator

__all__ = ["ADMIN_USER", "acting_as", "acting_user"]

ADMIN_USER = "serving-admin"
"""The user of the one token that our own API server knows."""

_user: contextvars.ContextVar[str] = contextvars.ContextVar("acting_user", default="")


def acting_user() -> str:
    """The user of the request that this task serves; "" if it serves none."""
    return _user.get()


@contextlib.contextmanager
def acting_as(user: str) -> Iterator[None]:
    """Attribute the writes of a block to a user."""
    token = _user.set(user)
    try:
        yield
    finally:
        _user.reset(token)
