import pytest

from serving.core.model.errors import InvalidValue
from serving.core.settings.resources import CPU, STORAGE, RevisionResources


def test_unset_resources_are_omitted_from_requests_and_limits() -> None:
    resources = RevisionResources(cpu_request="400m", memory_limit="200M")
    assert resources.requests == {"cpu": "400m"}
    assert resources.limits == {"memory": "200M"}


def test_quantities_are_validated_and_may_be_empty() -> None:
    assert (CPU.read(""), CPU.read("25m"), STORAGE.read(""), STORAGE.read("1Gi")) == ("", "25m", "", "1Gi")
    for unit in (CPU, STORAGE):
        with pytest.raises(InvalidValue):
            unit.read("much")
