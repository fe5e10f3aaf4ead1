"""Each recorded scenario is reproduced by the local API server with the controller and a simulated node."""

from pathlib import Path

import pytest

from serving.core.settings.controller import ControllerSettings
from serving.home.admission.admission import admit
from serving.home.controllers.addresses import publish_activators
from serving.home.store.memory import MemoryCluster
from tests.conformance.knative.recorded import DATA, Scenario, Step, missing, play, read_scenario
from tests.integration.api_server import TOKEN, served
from tests.integration.fake_node import a_world

# No process listens on this port.
NOWHERE = 1
SETTINGS = ControllerSettings(public_services=True, autocreate_cluster_domain_claims=True)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.yaml")), ids=lambda path: str(path.stem))
async def test_recorded_knative_scenario_is_reproduced(path: Path, tmp_path: Path) -> None:
    cluster = MemoryCluster(admit=admit)
    scenario = read_scenario(path)
    if scenario.activators:
        await publish_activators(cluster, "knative-serving", inner_port=NOWHERE)
    async with a_world(SETTINGS, cluster=cluster), served(cluster, tmp_path) as api:
        await play(scenario, api.url, TOKEN)


@pytest.mark.parametrize(
    ("wanted", "resource", "difference"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, ""),
        ({"a": None}, {}, ""),
        ({"a": 1}, {"a": 2}, ".a: 2, not 1"),
        ({"a": {"b": 1}}, {"a": 3}, ".a: 3 is no object"),
        ({"a": [1]}, {"a": [1, 2]}, ".a: [1, 2], not 1 items"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, ".a[0].b: 2, not 1"),
    ],
)
def test_first_difference_is_reported_with_its_path(wanted: object, resource: object, difference: str) -> None:
    assert missing(wanted, resource) == difference


async def test_response_that_differs_from_the_record_raises(tmp_path: Path) -> None:
    step = Step(send="GET /api/v1/namespaces/default", expect={"metadata": {"name": "other"}})
    async with served(MemoryCluster(), tmp_path) as api:
        with pytest.raises(AssertionError, match=r"t: step 1, GET /api.*: .metadata.name: 'default', not 'other'"):
            await play(Scenario(title="t", why="w", steps=[step]), api.url, TOKEN)
