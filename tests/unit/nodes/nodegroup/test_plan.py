"""The utilisation of a group."""

from serving.core.model.nodata import NoData
from serving.nodes.nodegroup.plan import FromZero, Utilisation, utilisation
from serving.nodes.nodegroup.records import Amount

MEGABYTE = 10**6


def amount(cpu_m: int, memory_bytes: int) -> Amount:
    return Amount(cpu_m=cpu_m, memory_bytes=memory_bytes)


def test_utilisation_is_that_of_the_fuller_resource() -> None:
    usage = utilisation(amount(5000, 1000 * MEGABYTE), amount(2000, 8000 * MEGABYTE), untainted_count=2)
    assert usage == Utilisation(cpu_percent=250.0, memory_percent=12.5)
    assert isinstance(usage, Utilisation)
    assert usage.percent == 250.0


def test_empty_group_without_requests_is_idle() -> None:
    assert utilisation(Amount(), Amount(), untainted_count=0) == Utilisation(cpu_percent=0.0, memory_percent=0.0)


def test_requests_without_a_node_are_from_zero() -> None:
    assert utilisation(amount(0, 1), Amount(), untainted_count=0) == FromZero()


def test_utilisation_without_cpu_or_memory_capacity_is_no_data() -> None:
    for capacity in (amount(0, 8), amount(8, 0), amount(0, 0)):
        assert isinstance(utilisation(amount(1, 1), capacity, untainted_count=1), NoData)


def test_utilisation_of_idle_nodes_without_capacity_is_no_data() -> None:
    assert isinstance(utilisation(Amount(), Amount(), untainted_count=1), NoData)
