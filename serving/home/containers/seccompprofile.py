"""Reads the machine's seccomp profiles, for containers with ``seccompProfile: Localhost``.

A profile is a JSON file in the format of Docker and of Kubernetes' ``seccompProfile: Localhost``, below ``seccomp`` in
the state folder. It becomes ``linux.seccomp`` of the OCI runtime specification. Rules that depend on capabilities,
architectures or the kernel are decided here, as by Docker. Source: moby/profiles, seccomp; kubernetes, "Restrict a
Container's Syscalls with seccomp".
"""

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import Object

_BYTES_MAX = 2**20
_ARCHITECTURES = {
    "x86_64": ("amd64", ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]),
    "aarch64": ("arm64", ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]),
}


class _When(msgspec.Struct, frozen=True, rename="camel"):
    caps: list[str] = []
    arches: list[str] = []
    min_kernel: str = ""


class _Argument(msgspec.Struct, frozen=True, rename="camel"):
    index: int
    value: int
    op: str
    value_two: int = 0


class _CallRule(msgspec.Struct, frozen=True, rename="camel"):
    action: str
    names: list[str] = []
    name: str = ""
    args: list[_Argument] | None = None
    errno_ret: int | None = None
    includes: _When | None = None
    excludes: _When | None = None


class _Profile(msgspec.Struct, frozen=True, rename="camel"):
    default_action: str
    default_errno_ret: int | None = None
    architectures: list[str] | None = None
    flags: list[str] | None = None
    syscalls: list[_CallRule] | None = None


def local_profile(folder: Path, security: Object, *, capabilities: frozenset[str] = frozenset()) -> Object | None:
    """The profile of a security context as ``linux.seccomp``; None if it names none.

    Raises:
        InvalidValue: when the file is missing, is outside of ``folder``, or is no profile.
    """
    requested = security.get("seccompProfile") or {}
    if requested.get("type") != "Localhost":
        return None
    name = requested.get("localhostProfile") or ""
    path = folder / name
    expected = f"seccompProfile.localhostProfile {name!r} to be a profile below {folder}"
    if not name or not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidValue(text=name, expected=expected)
    try:
        with path.open("rb") as file:
            profile = msgspec.json.decode(file.read(_BYTES_MAX), type=_Profile)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidValue(text=name, expected=f"{expected}: {error}") from error
    return _oci(profile, capabilities)


def _oci(profile: _Profile, capabilities: frozenset[str]) -> Object:
    machine, known = _ARCHITECTURES.get(platform.machine(), ("", []))
    rules = [
        _rule(syscall)
        for syscall in profile.syscalls or ()
        if (syscall.includes is None or _holds(syscall.includes, machine, capabilities, is_all=True))
        and (syscall.excludes is None or not _holds(syscall.excludes, machine, capabilities, is_all=False))
    ]
    converted: dict[str, Any] = {
        "defaultAction": profile.default_action,
        "architectures": profile.architectures or known,
        "syscalls": rules,
    }
    if profile.default_errno_ret is not None:
        converted["defaultErrnoRet"] = profile.default_errno_ret
    if profile.flags:
        converted["flags"] = profile.flags
    return converted


def _rule(rule: _CallRule) -> Mapping[str, Any]:
    converted: dict[str, Any] = {"names": rule.names or [rule.name], "action": rule.action}
    if rule.args:
        converted["args"] = [
            {"index": argument.index, "value": argument.value, "op": argument.op, "valueTwo": argument.value_two}
            for argument in rule.args
        ]
    if rule.errno_ret is not None:
        converted["errnoRet"] = rule.errno_ret
    return converted


def _holds(when: _When, machine: str, capabilities: frozenset[str], *, is_all: bool) -> bool:
    """Whether the conditions of a rule hold: all of them with ``is_all``, otherwise at least one.

    Conditions to include a rule must all hold; one condition to exclude it is enough.
    """
    conditions = [machine in when.arches] if when.arches else []
    conditions += [cap in capabilities for cap in when.caps]
    if when.min_kernel:
        conditions.append(_version(platform.release()) >= _version(when.min_kernel))
    return all(conditions) if is_all else any(conditions)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))
