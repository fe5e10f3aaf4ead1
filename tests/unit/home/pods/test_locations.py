import contextlib
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


def places() -> PodLocations:
    return PodLocations(random.Random(1))


def test_no_two_have_the_same_place() -> None:
    taken = [places_.reserve() for places_ in [places()] for _ in range(50)]
    assert (
        len({pod_location.address for pod_location in taken})
        == len({pod_location.port for pod_location in taken})
        == 50
    )


def test_a_port_in_use_is_passed_over() -> None:
    free = places().reserve()
    with socket.create_server((free.address, 8012)), socket.create_server(("127.0.0.1", free.port)):
        other = places().reserve()
    assert other.address != free.address
    assert other.port != free.port


def test_a_place_that_was_left_can_be_had_again() -> None:
    pod_locations = places()
    first = pod_locations.reserve()
    pod_locations.release(first)
    assert not pod_locations._used


def test_ports_for_tcp_are_reserved_with_the_place() -> None:
    pod_locations = places()
    place = pod_locations.with_tcp_ports(pod_locations.reserve(), 2)
    assert len({place.port, *place.tcp_ports}) == 3
    assert pod_locations.with_tcp_ports(place, 2) == place
    pod_locations.release(place)
    assert not pod_locations._used


def test_users_are_reserved_with_the_place() -> None:
    pod_locations = places()
    taken = [pod_locations.with_users(pod_locations.reserve()) for _ in range(3)]
    assert len({place.users for place in taken}) == 3
    assert pod_locations.with_users(taken[0]) == taken[0]
    for place in taken:
        pod_locations.release(place)
    assert not pod_locations._used


def test_without_a_free_range_of_users_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.home.pods.locations.used_ranges", lambda: {(0, 2**32 - 2)})
    pod_locations = places()
    with pytest.raises(OSError, match="no range of users is free"):
        pod_locations.with_users(pod_locations.reserve())


def test_pods_of_two_nodes_have_different_last_numbers() -> None:
    free = host_part(places().reserve("127.65").address)
    other = places()
    other.occupy(PodLocation(address=f"127.66.{free}", port=1))
    assert host_part(other.reserve("127.65").address) != free


def test_a_recent_look_at_all_processes_serves_several_pods(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_neither_addresses_nor_ports_follow_each_other() -> None:
    taken = [places_.reserve() for places_ in [PodLocations(random.SystemRandom())] for _ in range(50)]
    ports = [place.port for place in taken]
    hosts = [[int(part) for part in host_part(place.address).split(".")] for place in taken]
    for numbers in (ports, [third << 8 | fourth for third, fourth in hosts]):
        steps = [later - before for before, later in itertools.pairwise(numbers)]
        # Of 49 steps of random numbers of a range of 10,000 and more.
        assert len([step for step in steps if abs(step) < 10]) < 10


def test_addresses_that_another_user_occupies_in_a_row_stop_no_pod() -> None:
    """Before, 4,096 addresses after the last one were tried."""
    pod_locations = places()
    last = pod_locations.reserve().address
    third, fourth = (int(part) for part in host_part(last).split("."))
    number = third << 8 | fourth
    with contextlib.ExitStack() as stack:
        for after in range(1, 200):
            high, low = divmod((number + after) % 2**16, 256)
            stack.enter_context(socket.create_server((f"127.64.{high}.{low}", 8012)))
        assert host_part(pod_locations.reserve().address) != host_part(last)


def test_the_error_without_an_address_or_a_port_names_who_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_ports_that_a_pod_names_are_its_own_if_no_other_pod_has_them() -> None:
    pod_locations = places()
    other = pod_locations.reserve()
    place = pod_locations.with_named_ports(pod_locations.reserve(), [8012, 8080, 27017, other.port])
    # A queue-proxy's port is not given to an app, and those below the range need not be reserved.
    assert place.named_ports == (27017,)
    assert pod_locations.with_named_ports(pod_locations.reserve(), [27017]).named_ports == ()
    pod_locations.release(place)
    assert pod_locations.with_named_ports(pod_locations.reserve(), [27017]).named_ports == (27017,)


def test_a_pod_names_few_ports_of_the_range() -> None:
    pod_locations = places()
    place = pod_locations.with_named_ports(pod_locations.reserve(), range(21000, 22000))
    assert len(place.named_ports) == 16
    assert pod_locations.with_named_ports(place, range(21000, 22000)) == place


def test_ports_of_apps_and_queue_proxies_are_reserved() -> None:
    assert [is_reserved(port) for port in (8012, 8022, 20000, 32000, 8080, 19999, 60000)] == [True] * 4 + [False] * 3
