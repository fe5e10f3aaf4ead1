import itertools
import os
import random
import socket
import subprocess
import sys

import pytest

from serving.home.pods import locations
from serving.home.pods.locations import PodLocation, PodLocations, host_part, is_reserved, listening_ports

_LISTENS = """
import socket, sys
sockets = []
for _ in range(2):
    sockets.append(socket.create_server(("127.0.0.1", 0)))
    print(sockets[-1].getsockname()[1], flush=True)
    sys.stdin.readline()
"""


def new_locations() -> PodLocations:
    return PodLocations(random.Random(1))


def test_locations_have_distinct_addresses_and_ports() -> None:
    reserved = [pod_locations.reserve() for pod_locations in [new_locations()] for _ in range(50)]
    assert (
        len({pod_location.address for pod_location in reserved})
        == len({pod_location.port for pod_location in reserved})
        == 50
    )


def test_addresses_and_ports_in_use_are_skipped() -> None:
    free = new_locations().reserve()
    with socket.create_server((free.address, 8012)), socket.create_server(("127.0.0.1", free.port)):
        other = new_locations().reserve()
    assert other.address != free.address
    assert other.port != free.port


def test_released_location_is_free_again() -> None:
    dice = random.Random(1)
    pod_locations, state = PodLocations(dice), dice.getstate()
    first = pod_locations.reserve()
    dice.setstate(state)
    second = pod_locations.reserve()
    assert second.address != first.address
    assert second.port != first.port
    pod_locations.release(first)
    dice.setstate(state)
    assert pod_locations.reserve() == first


def test_tcp_ports_are_reserved_and_released_with_location() -> None:
    pod_locations = new_locations()
    location = pod_locations.with_tcp_ports(pod_locations.reserve(), 2)
    assert len({location.port, *location.tcp_ports}) == 3
    assert pod_locations.with_tcp_ports(location, 2) == location
    pod_locations.release(location)
    assert not pod_locations._used


def test_user_ranges_are_reserved_and_released_with_location() -> None:
    pod_locations = new_locations()
    reserved = [pod_locations.with_users(pod_locations.reserve()) for _ in range(3)]
    assert len({location.users for location in reserved}) == 3
    assert pod_locations.with_users(reserved[0]) == reserved[0]
    for location in reserved:
        pod_locations.release(location)
    assert not pod_locations._used


def test_reservation_without_free_user_range_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.home.pods.locations.used_ranges", lambda: {(0, 2**32 - 2)})
    pod_locations = new_locations()
    with pytest.raises(OSError, match="no range of users is free"):
        pod_locations.with_users(pod_locations.reserve())


def test_host_parts_differ_across_nodes() -> None:
    free = host_part(new_locations().reserve("127.65").address)
    other = new_locations()
    other.occupy(PodLocation(address=f"127.66.{free}", port=1))
    assert host_part(other.reserve("127.65").address) != free


def test_listening_ports_are_cached_up_to_maximum_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_KEPT_S", 3600)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _LISTENS], stdout=subprocess.PIPE, stdin=subprocess.PIPE, start_new_session=True
    ) as app:
        assert app.stdout
        assert app.stdin
        first = int(app.stdout.readline())
        assert listening_ports(app.pid) == {first}
        app.stdin.write(b"\n")
        app.stdin.flush()
        second = int(app.stdout.readline())
        assert listening_ports(app.pid, age_max_s=3600) == {first}
        assert listening_ports(app.pid) == {first, second}
        app.stdin.close()


def test_addresses_and_ports_are_not_sequential() -> None:
    reserved = [pod_locations.reserve() for pod_locations in [PodLocations(random.SystemRandom())] for _ in range(50)]
    ports = [location.port for location in reserved]
    hosts = [[int(part) for part in host_part(location.address).split(".")] for location in reserved]
    for numbers in (ports, [third << 8 | fourth for third, fourth in hosts]):
        steps = [later - before for before, later in itertools.pairwise(numbers)]
        # Of 49 steps of random numbers of a range of 10,000 and more.
        assert len([step for step in steps if abs(step) < 10]) < 10


def test_consecutive_occupied_addresses_do_not_block_reservation() -> None:
    """An earlier version tried only the 4,096 addresses after the last one."""
    pod_locations = new_locations()
    third, fourth = (int(part) for part in host_part(pod_locations.reserve().address).split("."))
    occupied = set()
    for number in range((third << 8 | fourth) + 1, (third << 8 | fourth) + 5_000):
        high, low = divmod(number % 2**16, 256)
        location = pod_locations.occupy(PodLocation(address=f"127.64.{high}.{low}", port=8012))
        occupied.add(location.address)
    assert pod_locations.reserve().address not in occupied


def test_exhausted_addresses_and_ports_errors_name_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.64.250.5", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(locations, "QUEUE_PORTS", (port,))
        monkeypatch.setattr(locations, "_PORT_FIRST", port)
        pod_locations = PodLocations(_Dice(250 << 8 | 5))
        pod_locations._port_end = port + 1
        with pytest.raises(
            OSError, match=rf"no address of 127\.64\.0\.0/16 .* user {os.geteuid()} listens on 64 "
        ) as raised:
            pod_locations._free_address("127.64")
        assert raised.value.errno is None
        with pytest.raises(OSError, match=f"no port from {port} to {port} is free: of 64 tries, none can be bound"):
            PodLocations._free_port(_with_dice(pod_locations, port))


class _Dice(random.Random):
    """Draws one number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        del start, stop, step
        return self.number


def _with_dice(pod_locations: PodLocations, number: int) -> PodLocations:
    pod_locations._dice = _Dice(number)
    return pod_locations


def test_named_ports_are_reserved_unless_another_pod_has_them() -> None:
    pod_locations = new_locations()
    other = pod_locations.reserve()
    location = pod_locations.with_named_ports(pod_locations.reserve(), [8012, 8080, 27017, other.port])
    # Queue-proxy ports are not assigned to apps, and ports below the range need no reservation.
    assert location.named_ports == (27017,)
    assert pod_locations.with_named_ports(pod_locations.reserve(), [27017]).named_ports == ()
    pod_locations.release(location)
    assert pod_locations.with_named_ports(pod_locations.reserve(), [27017]).named_ports == (27017,)


def test_reserved_named_ports_are_limited_to_16() -> None:
    pod_locations = new_locations()
    location = pod_locations.with_named_ports(pod_locations.reserve(), range(21000, 22000))
    assert len(location.named_ports) == 16
    assert pod_locations.with_named_ports(location, range(21000, 22000)) == location


def test_ports_of_apps_and_queue_proxies_are_in_reserved_ranges() -> None:
    assert [is_reserved(port) for port in (8012, 8022, 20000, 32000, 8080, 19999, 60000)] == [True] * 4 + [False] * 3
