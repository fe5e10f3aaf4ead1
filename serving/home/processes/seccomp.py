"""The system calls allowed to pods: Docker's default list, as a filter program (seccomp(2)) and as an OCI profile.

``syscalls.json`` has the number of each allowed call on x86_64 and aarch64, or -1. Calls with -1 on both are those of
32-bit programs. Other calls fail with EPERM. Calls newer than the list fail with ENOSYS, as on an older kernel. Source:
moby/profiles, seccomp/default.json, for a container with no capability, without io_uring.
"""

import functools
import json
import os
import struct
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

MACHINES = ("x86_64", "aarch64")
"""The machine architectures with numbers in the list."""
# <linux/audit.h>
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_OCI_ARCHITECTURES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM")
# <linux/filter.h>, <linux/seccomp.h>
_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENT_AT = 0, 4, 16
# Flags of clone(2) that make namespaces.
_NAMESPACES = 0x7E020000
# Execution domains of personality(2) that only change a program's layout, and the query of the current one.
_PERSONALITIES = (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)
_AF_VSOCK = 40
_CONDITIONAL = ("clone", "clone3", "personality", "socket")

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, value."""


@functools.cache
def syscall_numbers() -> dict[str, dict[str, int]]:
    """The numbers of the allowed system calls, by machine architecture and name."""
    return {
        machine: {name: numbers[at] for name, numbers in _listed().items() if numbers[at] >= 0}
        for at, machine in enumerate(MACHINES)
    }


@functools.cache
def _listed() -> dict[str, list[int]]:
    """The numbers of each allowed system call, one for each of ``MACHINES``, or -1 where it does not exist."""
    numbers: dict[str, list[int]] = json.loads(
        resources.files(__package__).joinpath("syscalls.json").read_text(encoding="ascii")
    )
    return numbers


def filter_program(machine: str | None = None) -> bytes:
    """The seccomp program that allows only the listed system calls; b"" for a machine architecture without a list."""
    machine = machine or os.uname().machine
    if machine not in MACHINES:
        return b""
    numbers = syscall_numbers()[machine]
    plain = [number for name, number in numbers.items() if name not in _CONDITIONAL]
    return b"".join(
        struct.pack("=HBBI", *instruction) for instruction in _program(_ARCHITECTURES[machine], numbers, plain)
    )


def _program(architecture: int, numbers: dict[str, int], plain: Iterable[int]) -> Sequence[Instruction]:
    refuse, unknown, allow = (
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    )
    instructions: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        # Programs of another architecture, such as 32 bits, have other numbers.
        (_JUMP_EQUAL, 1, 0, architecture),
        unknown,
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_EQUAL, 0, 1, numbers["clone3"]),
        # Its flags are in memory, which a filter cannot read: the C library falls back to clone.
        unknown,
        # Including the numbers of x32 calls.
        (_JUMP_GREATER, 0, 1, max(numbers.values())),
        unknown,
        (_JUMP_EQUAL, 0, 4, numbers["clone"]),
        (_LOAD, 0, 0, _ARGUMENT_AT),
        (_JUMP_SET, 0, 1, _NAMESPACES),
        refuse,
        allow,
        (_JUMP_EQUAL, 0, 4, numbers["socket"]),
        (_LOAD, 0, 0, _ARGUMENT_AT),
        (_JUMP_EQUAL, 0, 1, _AF_VSOCK),
        refuse,
        allow,
        (_JUMP_EQUAL, 0, 3 + len(_PERSONALITIES), numbers["personality"]),
        (_LOAD, 0, 0, _ARGUMENT_AT),
        *((_JUMP_EQUAL, len(_PERSONALITIES) - at, 0, value) for at, value in enumerate(_PERSONALITIES)),
        refuse,
        allow,
    ]
    for first, last in _ranges(plain):
        instructions += [(_JUMP_AT_LEAST, 0, 2, first), (_JUMP_GREATER, 1, 0, last), allow]
    return [*instructions, refuse]


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


@functools.cache
def oci_profile() -> dict[str, Any]:
    """The listed system calls as ``linux.seccomp`` of an OCI runtime's configuration (config-linux.md)."""

    def argument(value: int, op: str, **more: int) -> list[dict[str, Any]]:
        return [{"index": 0, "value": value, "op": f"SCMP_CMP_{op}", **more}]

    def rule(name: str, args: list[dict[str, Any]]) -> dict[str, Any]:
        return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": args}

    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _EPERM,
        "architectures": list(_OCI_ARCHITECTURES),
        "syscalls": [
            {"names": sorted(_listed().keys() - set(_CONDITIONAL)), "action": "SCMP_ACT_ALLOW"},
            rule("clone", argument(_NAMESPACES, "MASKED_EQ", valueTwo=0)),
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
            rule("socket", argument(_AF_VSOCK, "NE")),
            *(rule("personality", argument(value, "EQ")) for value in _PERSONALITIES),
        ],
    }
