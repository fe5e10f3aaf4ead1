"""Decides how processes of pods are isolated from this machine and from each other; ``confine`` applies it.

| mode | a pod's process |
|---|---|
| ``default`` | sees nothing of the state folder but its own, signals and traces its own processes only, has no capabilities, cannot gain any, and makes no system call that Docker forbids |
| ``strict`` | the same; as root also a user of its own, and only its own ports to listen on; a pod whose layers fail does not start |
| ``none`` | has the rights of who runs ``serving up`` |
"""

import base64
import functools
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from serving.home.processes.confine import probe
from serving.home.processes.seccomp import filter_program
from serving.model.errors import Problem, SettingsError

MODES = ("default", "strict", "none")
"""The values of ``serving up --isolation``."""
ISOLATION_VARIABLE = "SERVING_ISOLATION"
"""The environment variable that names the mode."""

# Above all ranges that systemd and container managers give out (systemd, UIDS-GIDS).
_USER_FIRST = 0x70000000
_OTHERS_MAY_ENTER = 0o001


class Confinement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The confinement of one process: see ``confine``."""

    hidden: str = ""
    shown: tuple[str, ...] = ()
    user: int = 0
    ports: tuple[int, ...] | None = None
    is_strict: bool = False


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """The isolation of all pods of a machine. They do not see the folder ``hidden``."""

    mode: str
    hidden: str
    is_root: bool

    @property
    def is_strict(self) -> bool:
        """Whether a pod that cannot be isolated does not start."""
        return self.mode == "strict"

    def user_of(self, address: str) -> int:
        """The user of the pod at an address, 0 for that of this process: pods have different last two numbers."""
        if not (self.is_strict and self.is_root):
            return 0
        third, fourth = address.split(".")[2:]
        return _USER_FIRST + (int(third) << 8) + int(fourth)

    def confinement(self, *, address: str, shown: Collection[str], ports: Collection[int]) -> Confinement:
        """The confinement of the processes of the pod at an address, with its files and ports."""
        return Confinement(
            hidden=self.hidden,
            shown=tuple(dict.fromkeys(one for one in shown if one.startswith(f"{self.hidden}/"))),
            user=self.user_of(address),
            # Port 0 is any that is free.
            ports=tuple(sorted({0, *ports})) if self.is_strict else None,
            is_strict=self.is_strict,
        )


def isolation_of(mode: str, state: Path, *, is_root: bool | None = None) -> Isolation | None:
    """The isolation of a mode; None for "none".

    A pod with a user of its own must be able to go to its folder: then the first folder on the way that is closed to others is hidden.
    """
    if mode == "none":
        return None
    is_root = os.geteuid() == 0 if is_root is None else is_root
    hidden = state.absolute()
    if mode == "strict" and is_root:
        closed = (one for one in reversed(hidden.parents) if not one.stat().st_mode & _OTHERS_MAY_ENTER)
        hidden = next(closed, hidden)
    return Isolation(mode=mode, hidden=str(hidden), is_root=is_root)


@functools.cache
def _encoded_filter() -> str:
    return base64.b64encode(filter_program()).decode()


def plan_of(confinement: Confinement) -> dict[str, Any]:
    """A confinement in JSON's types, as ``confine`` takes it."""
    return {
        "hidden": confinement.hidden,
        "shown": list(confinement.shown),
        "user": confinement.user,
        "ports": None if confinement.ports is None else list(confinement.ports),
        "is_strict": confinement.is_strict,
        "filter": _encoded_filter(),
    }


def missing_layers(isolation: Isolation, *, tried: Callable[[dict[str, Any]], list[str]] = probe) -> list[str]:
    """The layers that this machine refuses, with its reasons. Forks: not from threads. Takes some milliseconds."""
    wanted = isolation.confinement(address="127.64.0.1", shown=(), ports=(8080,))
    return tried(plan_of(msgspec.structs.replace(wanted, is_strict=False)))


def require_layers(mode: str, state: Path) -> None:
    """Raise ``SettingsError`` if strict isolation is requested and this machine lacks a layer."""
    wanted = isolation_of(mode, state)
    if wanted is not None and wanted.is_strict and (missing := missing_layers(wanted)):
        expected = "a machine that has all layers, see docs/isolation.md, or --isolation default"
        raise SettingsError(
            [
                Problem(where="--isolation strict", what=f"not possible here: {one}", expected=expected)
                for one in missing
            ]
        )
