"""ConfigMaps that change under running daemons: applied, refused, or kept for the next start."""

import contextlib
import re
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from serving.core.model.errors import NotFound
from serving.core.model.objects import Object
from serving.net.cluster.kinds import CONFIG_MAP, EVENT, REVISION, ROUTE
from serving.net.cluster.port import EventType
from tests.cluster_e2e.server import SPACE
from tests.cluster_e2e.stage import SYSTEM, Stage, of_objects, service, staged

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

NAMES = ("config-autoscaler", "config-controller", "config-defaults", "config-activator")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("settings")) as new_stage, kept(new_stage):
        # A server keeps Events for an hour: those of an earlier run would be taken for news.
        for event in (await new_stage.cluster.list(EVENT, SYSTEM)).items:
            if event["involvedObject"].get("name") in NAMES:
                with contextlib.suppress(NotFound):
                    await new_stage.cluster.delete(EVENT, SYSTEM, event["metadata"]["name"])
        yield new_stage


@contextlib.asynccontextmanager
async def kept(stage: Stage) -> AsyncIterator[None]:
    """Leave the ConfigMaps behind as they were found: with the same keys, or absent."""
    before = {name: await found(stage, name) for name in NAMES}
    try:
        yield
    finally:
        for name, data in before.items():
            if data is not None:
                await set_data(stage, name, data)
            elif await found(stage, name) is not None:
                await stage.cluster.delete(CONFIG_MAP, SYSTEM, name)


async def found(stage: Stage, name: str) -> dict[str, str] | None:
    try:
        return dict((await stage.cluster.get(CONFIG_MAP, SYSTEM, name)).get("data") or {})
    except NotFound:
        return None


async def configure(stage: Stage, config_map: str, **settings: str) -> None:
    """Set these keys only, as ``kubectl edit`` does."""
    await set_data(stage, config_map, {key.replace("_", "-"): text for key, text in settings.items()})


async def set_data(stage: Stage, name: str, data: Mapping[str, str]) -> None:
    """Give a ConfigMap this data, and create it where it is missing."""
    before = await found(stage, name)
    if before is None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": SYSTEM}}
        await stage.cluster.create(CONFIG_MAP, {**body, "data": dict(data)})
        return
    gone = dict.fromkeys(before.keys() - data.keys())
    await stage.cluster.patch(CONFIG_MAP, SYSTEM, name, patch={"data": {**gone, **data}})


@pytest.mark.parametrize(
    "before",
    [None, {}, {"_example": "queue-depth-max: 5", "name": "of the user", "stage": "another", "queue-depth-max": "7"}],
    ids=["absent", "empty", "set"],
)
async def test_config_maps_are_left_as_they_were_found(stage: Stage, before: dict[str, str] | None) -> None:
    name = "config-activator"
    async with kept(stage):
        if before is not None:
            await set_data(stage, name, before)
        elif await found(stage, name) is not None:
            await stage.cluster.delete(CONFIG_MAP, SYSTEM, name)
        async with kept(stage):
            await configure(stage, name, queue_depth_max="5", tell_revision="false")
        assert await found(stage, name) == before


async def event_of(stage: Stage, reason: str, pattern: str) -> Object:
    """The first Event of a ConfigMap with a message that matches."""
    listing = await stage.cluster.list(EVENT, SYSTEM)
    for entry in listing.items:
        if entry["reason"] == reason and re.search(pattern, entry["message"]):
            return entry
    async with stage.cluster.watch(EVENT, SYSTEM, resource_version=listing.resource_version) as events:
        async for event in of_objects(events):
            entry = event.object
            if (
                event.type is not EventType.DELETED
                and entry["reason"] == reason
                and re.search(pattern, entry["message"])
            ):
                return entry
    raise AssertionError(reason)


def plain(name: str, *, version: str = "1") -> Object:
    """A service without settings of its own."""
    resource = service(name, version=version)
    resource["spec"]["template"]["metadata"]["annotations"] = {}
    return resource


async def test_a_target_that_is_edited_scales_running_revisions(stage: Stage) -> None:
    await stage.apply(plain("edited"))
    await stage.ready("edited")
    stage.load("edited-00001", 10)
    await stage.scaled("edited-00001", 1)
    await configure(
        stage,
        "config-autoscaler",
        container_concurrency_target_default="5",
        container_concurrency_target_percentage="100",
    )
    await stage.scaled("edited-00001", 2)
    event = await event_of(stage, "SettingsChanged", "container_concurrency_target_default")
    assert event["involvedObject"]["name"] == "config-autoscaler"
    # One that is bad changes nothing, also what is good in it.
    await configure(stage, "config-autoscaler", container_concurrency_target_default="1", stable_window="never")
    event = await event_of(stage, "SettingsRefused", "'never'")
    assert event["type"] == "Warning"
    assert event["message"].startswith("The autoscaler keeps")
    assert "ConfigMap config-autoscaler: stable-window: 'never' is not right" in event["message"]
    assert "a duration from 6s to 1h" in event["message"]
    await configure(
        stage,
        "config-autoscaler",
        container_concurrency_target_default="2",
        container_concurrency_target_percentage="100",
    )
    await stage.scaled("edited-00001", 5)


async def test_a_daemon_that_starts_beside_a_bad_config_map_runs_on_the_defaults(stage: Stage) -> None:
    await configure(stage, "config-autoscaler")
    await stage.apply(plain("beside"))
    await stage.ready("beside")
    stage.load("beside-00001", 100)
    # It is at work, and not still starting.
    await stage.scaled("beside-00001", 2)
    await configure(stage, "config-autoscaler", max_scale_up_rate="0.5")
    await event_of(stage, "SettingsRefused", "max-scale-up-rate")
    assert await stage.daemons["autoscaler"].stop() == 0
    again = await stage.start("autoscaler")
    stage.load("beside-00001", 200)
    await stage.scaled("beside-00001", 3)
    (line,) = [entry for entry in again.log if entry["event"] == "settings.refused"][-1:]
    assert "max-scale-up-rate" in line["problems"][0]
    await configure(stage, "config-autoscaler")


async def test_another_domain_moves_running_routes_and_other_defaults_go_to_new_revisions(stage: Stage) -> None:
    await stage.apply(plain("moved"))
    await stage.ready("moved")
    await configure(stage, "config-controller", domain="apps.example.org")
    await stage.until(ROUTE, "moved", lambda route: ".serving-e2e.apps.example.org" in route["status"]["url"])
    await configure(stage, "config-defaults", revision_idle_timeout_seconds="77")
    await event_of(stage, "SettingsChanged", "revision_idle_timeout_s")
    changed = await stage.apply(plain("moved", version="2"))
    await stage.ready("moved", generation=changed["metadata"]["generation"])
    timeouts = [
        (await stage.cluster.get(REVISION, SPACE, f"moved-0000{number}"))["spec"].get("idleTimeoutSeconds")
        for number in (1, 2)
    ]
    assert timeouts == [None, 77]


async def test_what_needs_a_restart_is_said(stage: Stage) -> None:
    # What a ConfigMap says when the controller starts is no change; it is at work when a service is ready.
    await stage.apply(plain("waiting"))
    await stage.ready("waiting")
    await configure(stage, "config-activator", queue_depth_max="5", tell_revision="false")
    event = await event_of(stage, "SettingsWaitForRestart", ": queue_depth_max$")
    assert event["message"] == "The activator takes over when it is started again: queue_depth_max"
    await event_of(stage, "SettingsChanged", "tell_revision")
