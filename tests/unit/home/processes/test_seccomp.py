import os
import struct
import subprocess
import sys

import pytest

from serving.home.processes.seccomp import MACHINES, filter_program, oci_profile, syscall_numbers

ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x50001, 0x50026
ARCHITECTURES = dict(zip(MACHINES, (0xC000003E, 0xC00000B7), strict=True))


def outcome(machine: str, number: int, *, argument: int = 0, architecture: int = 0) -> int:
    """What the filter returns: an interpreter of its program."""
    program = list(struct.iter_unpack("=HBBI", filter_program(machine)))
    data = struct.pack("=IIQQ", number, architecture or ARCHITECTURES[machine], 0, argument)
    at = value = 0
    while True:
        code, yes, no, operand = program[at]
        at += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        else:
            holds = {0x15: value == operand, 0x25: value > operand, 0x35: value >= operand, 0x45: bool(value & operand)}
            at += yes if holds[code] else no


@pytest.mark.parametrize("machine", MACHINES)
def test_filter_allows_exactly_the_listed_syscalls(machine: str) -> None:
    listed = set(syscall_numbers()[machine].values())
    refused = set(range(max(listed) + 1)) - listed
    assert {outcome(machine, number) for number in listed - {syscall_numbers()[machine]["clone3"]}} == {ALLOW}
    assert {outcome(machine, number) for number in refused} == {EPERM}


@pytest.mark.parametrize("machine", MACHINES)
def test_syscalls_newer_than_the_list_return_enosys(machine: str) -> None:
    newest = max(syscall_numbers()[machine].values())
    assert outcome(machine, newest + 1) == ENOSYS
    # x32 has the same numbers with a bit more.
    assert outcome(machine, 0x40000000) == ENOSYS


def test_syscalls_of_another_architecture_return_enosys() -> None:
    assert outcome("x86_64", syscall_numbers()["x86_64"]["read"], architecture=0x40000003) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("clone", 0x11, ALLOW),
        ("clone", 0x10000000, EPERM),
        ("clone", 0x20000 | 0x11, EPERM),
        ("clone3", 0, ENOSYS),
        ("socket", 2, ALLOW),
        ("socket", 40, EPERM),
        ("personality", 0, ALLOW),
        ("personality", 0xFFFFFFFF, ALLOW),
        ("personality", 0x0040000, EPERM),
    ],
)
def test_filter_checks_arguments_of_clone_socket_and_personality(
    machine: str, name: str, argument: int, expected: int
) -> None:
    assert outcome(machine, syscall_numbers()[machine][name], argument=argument) == expected


@pytest.mark.parametrize("name", ["mount", "bpf", "kexec_load", "setns", "unshare", "io_uring_setup", "keyctl"])
def test_syscalls_blocked_by_docker_are_not_listed(name: str) -> None:
    assert all(name not in numbers for numbers in syscall_numbers().values())
    assert all(name not in rule["names"] for rule in oci_profile()["syscalls"])


def test_unsupported_machine_has_no_filter() -> None:
    assert filter_program("s390x") == b""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the header of another machine")
def test_syscall_numbers_equal_libseccomps() -> None:
    libseccomp = "import ctypes, sys; l = ctypes.CDLL('libseccomp.so.2'); print(*(l.seccomp_syscall_resolve_name(n.encode()) for n in sys.argv[1:]))"
    numbers = syscall_numbers()["x86_64"]
    done = subprocess.run([sys.executable, "-c", libseccomp, *numbers], capture_output=True, text=True, check=False)
    if "libseccomp.so.2" in done.stderr:
        pytest.skip("no libseccomp here")
    result = dict(zip(numbers, map(int, done.stdout.split()), strict=True))
    # An old libseccomp does not know the newest names.
    resolved = {name: number for name, number in result.items() if number >= 0}
    assert len(resolved) > 300
    assert resolved.items() <= numbers.items()
