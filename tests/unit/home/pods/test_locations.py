import random
import socket
import subprocess
import sys

import pytest

from serving.home.pods import locations
from serving.home.pods.locations import PodLocation, PodLocations, host_part, listening_ports

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
    taken = [places_.take() for places_ in [places()] for _ in range(50)]
    assert len({one.address for one in taken}) == len({one.port for one in taken}) == 50


def test_a_port_in_use_is_passed_over() -> None:
    free = places().take()
    with socket.create_server((free.address, 8012)), socket.create_server(("127.0.0.1", free.port)):
        other = places().take()
    assert other.address != free.address
    assert other.port != free.port


def test_a_place_that_was_left_can_be_had_again() -> None:
    one = places()
    first = one.take()
    one.leave(first)
    assert not one._taken


def test_ports_for_tcp_are_reserved_with_the_place() -> None:
    one = places()
    place = one.with_tcp_ports(one.take(), 2)
    assert len({place.port, *place.tcp_ports}) == 3
    assert one.with_tcp_ports(place, 2) == place
    one.leave(place)
    assert not one._taken


def test_users_are_reserved_with_the_place() -> None:
    one = places()
    taken = [one.with_users(one.take()) for _ in range(3)]
    assert len({place.users for place in taken}) == 3
    assert one.with_users(taken[0]) == taken[0]
    for place in taken:
        one.leave(place)
    assert not one._taken


def test_without_a_free_range_of_users_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.home.pods.locations.used_ranges", lambda: {(0, 2**32 - 2)})
    one = places()
    with pytest.raises(OSError, match="no range of users is free"):
        one.with_users(one.take())


def test_pods_of_two_nodes_have_different_last_numbers() -> None:
    free = host_part(places().take("127.65").address)
    other = places()
    other.occupy(PodLocation(address=f"127.66.{free}", port=1))
    assert host_part(other.take("127.65").address) != free


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
