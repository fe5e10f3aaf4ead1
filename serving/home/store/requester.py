"""The requester of a write: the user, for audit annotations, and the field manager.

The API server sets both for the time of a request. Writes of the system itself, such as those of the controllers in the
same process, have neither.
"""

import contextlib
import contextvars
from collections.abc import Iterator

ADMIN_USER = "serving-admin"
"""The user of the state folder's token."""

_user: contextvars.ContextVar[str] = contextvars.ContextVar("acting_user", default="")
_manager: contextvars.ContextVar[str] = contextvars.ContextVar("acting_manager", default="")
_may_run_programs: contextvars.ContextVar[bool] = contextvars.ContextVar("may_run_programs", default=True)
_may_claim_hosts: contextvars.ContextVar[bool] = contextvars.ContextVar("may_claim_hosts", default=True)


def acting_user() -> str:
    """The user of the current request; "" outside of requests."""
    return _user.get()


def acting_manager() -> str:
    """The field manager of the current request; "" outside of requests."""
    return _manager.get()


def may_run_programs() -> bool:
    """Whether the current user may run programs and use folders of this machine. True outside of requests."""
    return _may_run_programs.get()


def may_claim_hosts() -> bool:
    """Whether the current user may claim hosts for a namespace. True outside of requests."""
    return _may_claim_hosts.get()


@contextlib.contextmanager
def managed_by(manager: str) -> Iterator[None]:
    """Attribute the writes in a context to a field manager."""
    token = _manager.set(manager)
    try:
        yield
    finally:
        _manager.reset(token)


@contextlib.contextmanager
def acting_as(user: str, *, manager: str = "", runs_programs: bool = True, claims_hosts: bool = True) -> Iterator[None]:
    """Attribute the writes in a context to a user and a field manager.

    ``runs_programs``: the user may run programs. ``claims_hosts``: the user may claim hosts.
    """
    user_token, manager_token = _user.set(user), _manager.set(manager)
    programs_token = _may_run_programs.set(runs_programs)
    hosts_token = _may_claim_hosts.set(claims_hosts)
    try:
        yield
    finally:
        _user.reset(user_token)
        _manager.reset(manager_token)
        _may_run_programs.reset(programs_token)
        _may_claim_hosts.reset(hosts_token)
