"""Lists: order, selectors, pages."""

import pytest

from serving.core.model.errors import Invalid
from serving.net.cluster.kinds import CONFIG_MAP, EVENT, NAMESPACE, POD
from serving.net.cluster.port import Cluster
from tests.conformance.cluster.objects import config_map, names, pod

# A real cluster also creates a ConfigMap in each namespace.
OURS = "ours=yes"


async def make(cluster: Cluster, namespace: str, **tiers: str) -> None:
    for name, tier in tiers.items():
        await cluster.create(CONFIG_MAP, config_map(namespace, name, ours="yes", **({"tier": tier} if tier else {})))


async def test_a_list_is_ordered_by_name(cluster: Cluster, namespace: str) -> None:
    await make(cluster, namespace, b="", c="", a="")
    listing = await cluster.list(CONFIG_MAP, namespace, label_selector=OURS)
    assert names(listing.items) == ["a", "b", "c"]


async def test_a_list_of_all_namespaces_is_in_the_order_of_etcd_keys(cluster: Cluster, namespace: str) -> None:
    others = [f"{namespace}-{letter}" for letter in "ba"]
    for other in others:
        await cluster.create(NAMESPACE, {"metadata": {"name": other}})
        await cluster.create(CONFIG_MAP, config_map(other, "one", batch=namespace))
    await cluster.create(CONFIG_MAP, config_map(namespace, "two", batch=namespace))
    listing = await cluster.list(CONFIG_MAP, label_selector=f"batch={namespace}")
    for other in others:
        await cluster.delete(NAMESPACE, "", other)
    assert [item["metadata"]["namespace"] for item in listing.items] == [*sorted(others), namespace]


async def test_pages_continue_in_the_order_of_etcd_keys(cluster: Cluster, namespace: str) -> None:
    other = f"{namespace}-a"
    await cluster.create(NAMESPACE, {"metadata": {"name": other}})
    for place, name in ((namespace, "one"), (other, "two"), (namespace, "three"), (other, "four")):
        await cluster.create(CONFIG_MAP, config_map(place, name, batch=namespace))
    results: list[str] = []
    token = ""
    while not results or token:
        listing = await cluster.list(CONFIG_MAP, label_selector=f"batch={namespace}", page_size=1, page=token)
        results += names(listing.items)
        token = listing.next_page
    await cluster.delete(NAMESPACE, "", other)
    assert results == ["four", "two", "one", "three"]


async def test_list_items_have_api_version_and_kind(cluster: Cluster, namespace: str) -> None:
    await make(cluster, namespace, a="")
    listing = await cluster.list(CONFIG_MAP, namespace, label_selector=OURS)
    assert (listing.items[0]["apiVersion"], listing.items[0]["kind"]) == ("v1", "ConfigMap")


async def test_empty_list_has_a_resource_version(cluster: Cluster, namespace: str) -> None:
    listing = await cluster.list(EVENT, namespace, label_selector="nobody=has-this")
    assert (listing.items, listing.next_page) == ([], "")
    assert listing.resource_version


@pytest.mark.parametrize(
    ("selector", "expected_names"),
    [
        ("tier=web", ["a"]),
        ("tier==web", ["a"]),
        ("tier!=web", ["b", "c"]),
        ("tier in (web, db)", ["a", "b"]),
        ("tier notin (web)", ["b", "c"]),
        ("tier", ["a", "b"]),
        ("!tier", ["c"]),
        ("tier,tier!=db", ["a"]),
        ("tier=none", []),
    ],
)
async def test_list_is_filtered_by_label_selector(
    cluster: Cluster, namespace: str, selector: str, expected_names: list[str]
) -> None:
    await make(cluster, namespace, a="web", b="db", c="")
    listing = await cluster.list(CONFIG_MAP, namespace, label_selector=f"{OURS},{selector}")
    assert names(listing.items) == expected_names


@pytest.mark.parametrize("selector", ["tier in web", "=web", "tier=web,,", "tier=a b"])
async def test_invalid_label_selector_is_rejected(cluster: Cluster, namespace: str, selector: str) -> None:
    with pytest.raises(Invalid):
        await cluster.list(CONFIG_MAP, namespace, label_selector=selector)


@pytest.mark.parametrize(
    ("selector", "expected_names"),
    [
        ("metadata.name=a", ["a"]),
        ("metadata.name!=a", ["b"]),
        ("status.phase=Pending", ["b"]),
        ("status.phase!=Pending,metadata.name=a", ["a"]),
        ("spec.nodeName=", ["a", "b"]),
    ],
)
async def test_pods_are_filtered_by_field_selector(
    cluster: Cluster, namespace: str, selector: str, expected_names: list[str]
) -> None:
    for name in ("a", "b"):
        await cluster.create(POD, pod(namespace, name))
    await cluster.patch(POD, namespace, "a", patch={"status": {"phase": "Running"}}, subresource="status")
    listing = await cluster.list(POD, namespace, field_selector=selector)
    assert names(listing.items) == expected_names


async def test_events_are_filtered_by_involved_object(cluster: Cluster, namespace: str) -> None:
    for name in ("a", "b"):
        involved = {"kind": "Pod", "namespace": namespace, "name": f"pod-{name}"}
        body = {"metadata": {"namespace": namespace, "name": name}, "involvedObject": involved, "reason": "Started"}
        await cluster.create(EVENT, body)
    selector = "involvedObject.kind=Pod,involvedObject.name=pod-b"
    assert names((await cluster.list(EVENT, namespace, field_selector=selector)).items) == ["b"]


async def test_unsupported_field_selector_is_rejected(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid):
        await cluster.list(CONFIG_MAP, namespace, field_selector="data.key=value")


async def test_pages_together_contain_the_whole_list(cluster: Cluster, namespace: str) -> None:
    await make(cluster, namespace, a="", b="", c="", d="", e="")
    pages: list[list[str]] = []
    token = ""
    while not pages or token:
        listing = await cluster.list(CONFIG_MAP, namespace, label_selector=OURS, page_size=2, page=token)
        pages.append(names(listing.items))
        token = listing.next_page
    assert pages == [["a", "b"], ["c", "d"], ["e"]]


async def test_page_with_all_items_is_followed_by_empty_pages_only(cluster: Cluster, namespace: str) -> None:
    await make(cluster, namespace, a="", b="")
    listing = await cluster.list(CONFIG_MAP, namespace, label_selector=OURS, page_size=2)
    assert names(listing.items) == ["a", "b"]
    # A kube-apiserver returns a token while filtered-out objects follow; the next page is then empty.
    while token := listing.next_page:
        listing = await cluster.list(CONFIG_MAP, namespace, label_selector=OURS, page_size=2, page=token)
        assert listing.items == []


async def test_later_pages_have_the_version_of_the_first(cluster: Cluster, namespace: str) -> None:
    await make(cluster, namespace, a="", b="")
    first = await cluster.list(CONFIG_MAP, namespace, label_selector=OURS, page_size=1)
    await make(cluster, namespace, c="")
    second = await cluster.list(CONFIG_MAP, namespace, label_selector=OURS, page_size=1, page=first.next_page)
    assert second.resource_version == first.resource_version


async def test_invalid_continue_token_is_rejected(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid):
        await cluster.list(CONFIG_MAP, namespace, page_size=1, page="!?")
