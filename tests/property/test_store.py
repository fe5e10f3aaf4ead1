"""A list and its watch give the store's state; a restarted store has all acknowledged writes."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.model.errors import ClusterError, Gone
from serving.core.model.objects import Object
from serving.home.admission.admission import admit
from serving.home.schemas.crds import crds
from serving.home.schemas.schema import Schema, completed
from serving.home.store.history import StoreLimits
from serving.home.store.journal import Journal
from serving.home.store.memory import MemoryCluster
from serving.home.store.writes import with_generation
from serving.net.cluster.kinds import CONFIG_MAP, CONFIGURATION, REVISION, SERVING_SERVICE, Kind
from serving.net.cluster.port import EventType

NAMES = st.sampled_from("abc")
LABELS = st.sampled_from(["web", "db"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["create", "patch", "delete", "hold", "let go"]), NAMES, LABELS), max_size=25
)

WRITES = st.lists(
    st.tuples(st.sampled_from(["create", "label", "flip", "status", "delete"]), NAMES, st.integers(0, 3)), max_size=20
)
# Fields that select a handler or a source even if empty.
CHOICES = {
    *("exec", "grpc", "httpGet", "tcpSocket", "livenessProbe", "startupProbe"),
    *("configMap", "downwardAPI", "emptyDir", "ephemeral", "projected", "secret", "serviceAccountToken"),
}
Step = tuple[str, Schema]
LISTS = {"env", "volumeMounts", "args", "command"}


async def do(cluster: MemoryCluster, step: tuple[str, str, str]) -> None:
    """Make one write, which may be rejected."""
    what, name, label = step
    try:
        match what:
            case "create":
                await cluster.create(CONFIG_MAP, {"metadata": {"name": name, "labels": {"tier": label}}})
            case "patch":
                await cluster.patch(CONFIG_MAP, "default", name, patch={"metadata": {"labels": {"tier": label}}})
            case "delete":
                await cluster.delete(CONFIG_MAP, "default", name)
            case "hold" | "let go":
                finalizers = ["example.com/one"] if what == "hold" else None
                await cluster.patch(CONFIG_MAP, "default", name, patch={"metadata": {"finalizers": finalizers}})
    except ClusterError:
        return


async def listed(cluster: MemoryCluster, selector: str) -> tuple[dict[str, Object], str]:
    listing = await cluster.list(CONFIG_MAP, label_selector=selector)
    return {item["metadata"]["name"]: item for item in listing.items}, listing.resource_version


async def followed(cluster: MemoryCluster, known: dict[str, Object], start: str, selector: str) -> dict[str, Object]:
    """A client's state after the events of a watch."""
    known = dict(known)
    async with cluster.watch(CONFIG_MAP, resource_version=start, label_selector=selector) as events:
        await cluster.close()
        async for event in events:
            name = event.object["metadata"]["name"]
            if event.type is EventType.DELETED:
                assert name in known, "a removal of what nobody had seen"
                del known[name]
            else:
                assert (name in known) is (event.type is EventType.MODIFIED), "a change of what was not as told"
                known[name] = event.object
    return known


@given(STEPS, STEPS, st.sampled_from(["", "tier=web", "tier!=web"]))
def test_list_plus_watch_yields_the_next_list(before: Any, after: Any, selector: str) -> None:  # noqa: ANN401 - steps
    async def scenario() -> None:
        cluster = MemoryCluster()
        for step in before:
            await do(cluster, step)
        known, start = await listed(cluster, selector)
        for step in after:
            await do(cluster, step)
        truth, _ = await listed(cluster, selector)
        assert await followed(cluster, known, start, selector) == truth

    asyncio.run(scenario())


@given(STEPS, STEPS, st.integers(0, 10))
def test_watch_of_a_short_history_is_complete_or_gone(before: Any, after: Any, history_count: int) -> None:  # noqa: ANN401 - steps
    async def scenario() -> None:
        cluster = MemoryCluster(limits=StoreLimits(history_count_max=history_count))
        for step in before:
            await do(cluster, step)
        known, start = await listed(cluster, "")
        for step in after:
            await do(cluster, step)
        truth, _ = await listed(cluster, "")
        try:
            result = await followed(cluster, known, start, "")
        except Gone:
            return
        assert result == truth

    asyncio.run(scenario())


@given(STEPS)
def test_resource_versions_increase_strictly(steps: Any) -> None:  # noqa: ANN401 - steps
    async def scenario() -> None:
        cluster = MemoryCluster()
        async with cluster.watch(CONFIG_MAP, resource_version="0") as events:
            for step in steps:
                await do(cluster, step)
            await cluster.close()
            versions = [int(event.object["metadata"]["resourceVersion"]) async for event in events]
        assert versions == sorted(set(versions))

    asyncio.run(scenario())


def durable(objects: list[Object]) -> list[Object]:
    return [
        {key: value for key, value in resource.items() if key != "status"}
        | {"metadata": {key: value for key, value in resource["metadata"].items() if key != "resourceVersion"}}
        for resource in objects
    ]


async def write(cluster: MemoryCluster, step: tuple[str, str, int]) -> None:
    what, name, number = step
    patches: dict[str, Object] = {
        "label": {"metadata": {"labels": {"number": str(number)}}},
        "flip": {"spec": {"servingState": ("Active", "Reserve", "Retired", None)[number]}},
        "status": {"status": {"number": number}},
    }
    try:
        if what == "create":
            await cluster.create(REVISION, {"metadata": {"name": name}, "spec": {"servingState": "Active"}})
        elif what == "delete":
            await cluster.delete(REVISION, "default", name)
        else:
            await cluster.patch(
                REVISION, "default", name, patch=patches[what], subresource="status" if what == "status" else None
            )
    except ClusterError:
        return


@settings(max_examples=30)
@given(WRITES, st.integers(1, 5))
def test_restarted_store_restores_everything_except_status(steps: Any, at_once: int) -> None:  # noqa: ANN401 - steps
    async def scenario(path: Path) -> None:
        cluster = MemoryCluster(Journal(path))
        for first in range(0, len(steps), at_once):
            await asyncio.gather(*(write(cluster, step) for step in steps[first : first + at_once]))
        before = (await cluster.list(REVISION)).items
        await cluster.close()
        again = MemoryCluster(Journal(path))
        after = (await again.list(REVISION)).items
        await again.close()
        assert durable(after) == durable(before)
        assert not any("status" in revision for revision in after)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder) / "journal.db"))


def empties(schema: Schema, path: tuple[Step, ...] = ()) -> list[tuple[Step, ...]]:
    """The paths to all maps and lists of a schema."""
    results = []
    for key, known in schema.get("properties", {}).items():
        way = (*path, (key, known))
        if known.get("type") in {"object", "array"}:
            results.append(way)
        results += empties(known.get("items", known), way)
    return results


def with_leaf(way: tuple[Step, ...], leaf: object) -> Object:
    """An object along a path, with one element in each list and a leaf at its end; None means no leaf."""
    (key, known), *rest = way
    if not rest:
        return {} if leaf is None else {key: leaf}
    below = with_leaf(tuple(rest), leaf)
    return {key: [below] if known["type"] == "array" else below}


def kind_and_ways() -> list[tuple[Kind, tuple[Step, ...]]]:
    results = []
    for kind in (SERVING_SERVICE, CONFIGURATION):
        template = crds()[kind].schema["properties"]["spec"]["properties"]["template"]
        start: tuple[Step, ...] = (("spec", {"type": "object"}), ("template", template))
        results += [(kind, way) for way in empties(template, start) if way[-1][0] not in {*CHOICES, "spec"}]
    return results


def generations(kind: Kind, old: Object, new: Object) -> tuple[int, int]:
    """The generation after a write and after the write back."""
    first, other = {**old, "metadata": {"generation": 4}}, {**new, "metadata": {"generation": 4}}
    return tuple(with_generation(kind, *two)["metadata"]["generation"] for two in ((first, other), (other, first)))


def test_empty_template_field_causes_no_new_generation() -> None:
    """The test covers all fields, without a draw."""
    for kind, way in kind_and_ways():
        schema = crds()[kind].schema
        leaf: object = [] if way[-1][1]["type"] == "array" else {}
        absent, empty = (completed(schema, with_leaf(way, each_leaf)) for each_leaf in (None, leaf))
        assert generations(kind, absent, empty) == (4, 4), [key for key, _ in way]


def test_filled_template_field_causes_a_new_generation() -> None:
    for kind, way in kind_and_ways():
        leaf: object = ["x"] if way[-1][1]["type"] == "array" else {"x": "y"}
        absent, filled = (with_leaf(way, each_leaf) for each_leaf in (None, leaf))
        assert generations(kind, absent, filled) == (5, 5), [key for key, _ in way]


def test_empty_volume_source_choice_causes_a_new_generation() -> None:
    sources: list[Object] = [{"emptyDir": {}}, {"configMap": {}}]
    volumes = [{"volumes": [{"name": "a", **source}]} for source in sources]
    assert generations(CONFIGURATION, *({"spec": {"template": {"spec": volume}}} for volume in volumes)) == (5, 5)


@given(st.sampled_from(["resources", "env", "volumeMounts", "securityContext", "args", "command"]))
def test_replace_by_a_go_client_causes_no_new_generation(key: str) -> None:
    async def scenario() -> int:
        cluster = MemoryCluster(admit=admit)
        template: Object = {"spec": {"containers": [{"image": "x"}]}}
        body = {"metadata": {"name": "hello"}, "spec": {"template": template}}
        service = await cluster.create(SERVING_SERVICE, body)
        container = {**service["spec"]["template"]["spec"]["containers"][0], key: [] if key in LISTS else {}}
        service["spec"]["template"] = {"metadata": {"creationTimestamp": None}, "spec": {"containers": [container]}}
        return int((await cluster.replace(SERVING_SERVICE, service))["metadata"]["generation"])

    assert asyncio.run(scenario()) == 1
