"""The requester of a write: the user, for audit annotations, and the field manager.

The API server sets both for the time of a request. Writes of the system itself, such as those of the controllers in the same
process, have neither.
"""

import contextlib
import contextvars
from collections.abc import Iterator

ADMIN_USER = "serving-admin"
"""The user of the API server's one token."""

_user: contextvars.ContextVar[str] = contextvars.ContextVar("acting_user", default="")
_manager: contextvars.ContextVar[str] = contextvars.ContextVar("acting_manager", default="")


def acting_user() -> str:
    """The user of the current request; "" outside of requests."""
    return _user.get()


def acting_manager() -> str:
    """The field manager of the current request; "" outside of requests."""
    return _manager.get()


@contextlib.contextmanager
def acting_as(user: str, *, manager: str = "") -> Iterator[None]:
    """Attribute the writes of a block to a user and a field manager."""
    user_token, manager_token = _user.set(user), _manager.set(manager)
    try:
        yield
    finally:
        _user.reset(user_token)
        _manager.reset(manager_token)
