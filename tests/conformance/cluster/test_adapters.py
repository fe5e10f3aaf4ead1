"""The suite runs over every adapter of the port."""

import re
import typing
from collections.abc import AsyncIterator, Callable

from tests.conformance.cluster.adapters import ADAPTERS
from tests.tidy.sources import product_files


def implementation(adapter: Callable[..., object]) -> str:
    """The class of the cluster that an adapter gives."""
    result = typing.get_type_hints(adapter)["return"]
    assert typing.get_origin(result) is AsyncIterator
    return str(typing.get_args(result)[0].__name__)


def test_every_cluster_implementation_has_an_adapter() -> None:
    results = {
        name
        for path in product_files()
        for name in re.findall(r"^class (\w+)\(Cluster\)", path.read_text(), re.MULTILINE)
    }
    assert results == {implementation(adapter) for adapter in ADAPTERS.values()}
