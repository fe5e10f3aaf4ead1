import random
import socket

from serving.home.pods.locations import PodLocation, PodLocations, host_part


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


def test_pods_of_two_nodes_have_different_last_numbers() -> None:
    free = host_part(places().take("127.65").address)
    other = places()
    other.occupy(PodLocation(address=f"127.66.{free}", port=1))
    assert host_part(other.take("127.65").address) != free
