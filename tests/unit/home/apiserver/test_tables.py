from typing import Any

import pytest

from serving.home.apiserver.tables import metadata_list, partial_metadata, table
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    CONFIGURATION,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    EVENT,
    HTTP_ROUTE,
    KINDS,
    LEASE,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    REVISION,
    SCALING_POLICY,
    SECRET,
    SERVICE,
    SERVING_SERVICE,
    Kind,
)

Json = dict[str, Any]
METADATA = {"name": "a", "creationTimestamp": "1970-01-01T00:00:00Z"}

DONE = {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
FAILED = {"state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
CRASHES = "Init:CrashLoopBackOff"


def cells(kind: Kind, **fields: object) -> Json:
    """The row of one object by the names of the columns."""
    result = {"metadata": METADATA} | fields
    entry = table(kind, [result], {}, version="v1", include="None", now_s=42)
    return dict(zip([column["name"] for column in entry["columnDefinitions"]], entry["rows"][0]["cells"], strict=True))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource)
def test_every_kind_can_be_printed_bare(kind: Kind) -> None:
    entry = table(kind, [{"metadata": {}}], {}, version="v1", include="Metadata", now_s=0)
    assert len(entry["rows"][0]["cells"]) == len(entry["columnDefinitions"]) > 0


def test_a_service_prints_its_condition() -> None:
    conditions = [{"type": "Ready", "status": "False", "reason": "RevisionFailed"}]
    row = cells(
        SERVING_SERVICE, status={"url": "http://a", "conditions": conditions, "latestReadyRevisionName": "a-00001"}
    )
    assert row == {
        "Name": "a",
        "URL": "http://a",
        "LatestCreated": None,
        "LatestReady": "a-00001",
        "Ready": "False",
        "Reason": "RevisionFailed",
    }


def test_a_revision_prints_its_state_and_replicas_as_numbers() -> None:
    row = cells(REVISION, spec={"servingState": "Reserve"}, status={"actualReplicas": 0, "desiredReplicas": 2})
    assert (row["State"], row["Actual Replicas"], row["Desired Replicas"]) == ("Reserve", 0, 2)


def test_a_date_is_printed_as_an_age() -> None:
    assert cells(SCALING_POLICY)["Age"] == "42s"


def test_a_value_that_is_no_text_is_printed_as_one() -> None:
    assert cells(CONFIGURATION, status={"latestReadyRevisionName": 5})["LatestReady"] == "5"


def test_a_pod_prints_how_many_containers_are_ready() -> None:
    statuses = [{"ready": True, "restartCount": 2}, {"ready": False, "restartCount": 1}]
    row = cells(
        POD, spec={"nodeName": "n"}, status={"phase": "Running", "podIP": "127.64.0.1", "containerStatuses": statuses}
    )
    assert row == {
        "Name": "a",
        "Ready": "1/2",
        "Status": "Running",
        "Restarts": 3,
        "Age": "42s",
        "IP": "127.64.0.1",
        "Node": "n",
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "Unknown"),
        ({"status": {"phase": "Pending"}}, "Pending"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        (
            {"status": {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}},
            "CrashLoopBackOff",
        ),
        ({"status": {"containerStatuses": [{}, {"state": {"terminated": {"reason": "OOMKilled"}}}]}}, "OOMKilled"),
        ({"metadata": METADATA | {"deletionTimestamp": "x"}, "status": {"phase": "Running"}}, "Terminating"),
        ({"status": {"phase": "Pending", "initContainerStatuses": [DONE, {"state": {"running": {}}}]}}, "Init:1/2"),
        ({"status": {"initContainerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}]}}, "Init:0/1"),
        ({"status": {"initContainerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}}, CRASHES),
        ({"status": {"initContainerStatuses": [FAILED], "phase": "Failed"}}, "Init:Error"),
        ({"status": {"initContainerStatuses": [DONE], "phase": "Running"}}, "Running"),
        (
            {"status": {"conditions": [{"type": "serving.dev/Dormant", "status": "True"}], "phase": "Running"}},
            "Dormant",
        ),
        (
            {"status": {"conditions": [{"type": "serving.dev/Dormant", "status": "False"}], "phase": "Running"}},
            "Running",
        ),
    ],
)
def test_a_pod_is_summed_up_as_kubectl_does(fields: Json, expected: str) -> None:
    assert cells(POD, **fields)["Status"] == expected


def test_a_pod_without_a_status_counts_its_containers() -> None:
    assert cells(POD, spec={"containers": [{}, {}]})["Ready"] == "0/2"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready"),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "NotReady"),
        ({"spec": {"unschedulable": True}}, "NotReady,SchedulingDisabled"),
    ],
)
def test_a_node_prints_whether_it_takes_pods(fields: Json, expected: str) -> None:
    assert cells(NODE, **fields)["Status"] == expected


def test_a_node_prints_its_roles() -> None:
    labels = {"node-role.kubernetes.io/control-plane": "", "other": "x"}
    assert cells(NODE, metadata=METADATA | {"labels": labels})["Roles"] == "control-plane"


def test_a_core_service_prints_its_ports_and_selector() -> None:
    row = cells(
        SERVICE, spec={"ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}], "selector": {"a": "b", "c": "d"}}
    )
    assert (row["Port(s)"], row["Selector"], row["Type"]) == ("80/TCP,53/UDP", "a=b,c=d", "ClusterIP")


def test_a_deployment_prints_its_replicas() -> None:
    spec = {"replicas": 3, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    row = cells(DEPLOYMENT, spec=spec, status={"readyReplicas": 2})
    assert (row["Ready"], row["Containers"], row["Images"], row["Selector"]) == ("2/3", "c", "i", "<none>")


def test_an_endpoint_slice_prints_three_addresses_and_how_many_more() -> None:
    endpoints = [{"addresses": [f"127.64.0.{last}"]} for last in range(1, 6)]
    row = cells(ENDPOINT_SLICE, addressType="IPv4", endpoints=endpoints, ports=[{"port": 8012}])
    assert (row["Endpoints"], row["Ports"]) == ("127.64.0.1,127.64.0.2,127.64.0.3 + 2 more...", "8012")


def test_an_event_prints_what_it_is_about() -> None:
    row = cells(
        EVENT, involvedObject={"kind": "Pod", "name": "p"}, message=" hi\n", lastTimestamp="1970-01-01T00:00:40Z"
    )
    assert (row["Object"], row["Message"], row["Last Seen"]) == ("pod/p", "hi", "2s")


@pytest.mark.parametrize(
    ("kind", "fields", "column", "expected"),
    [
        (CONFIG_MAP, {"data": {"a": "b"}}, "Data", 1),
        (SECRET, {"data": {"a": "b"}}, "Type", "Opaque"),
        (HTTP_ROUTE, {"spec": {"hostnames": ["a", "b"]}}, "Hostnames", "a,b"),
        (LEASE, {"spec": {"holderIdentity": "me"}}, "Holder", "me"),
        (NAMESPACE, {"status": {"phase": "Terminating"}}, "Status", "Terminating"),
        (PERSISTENT_VOLUME_CLAIM, {"status": {"phase": "Bound"}}, "Status", "Bound"),
        (
            PERSISTENT_VOLUME_CLAIM,
            {
                "metadata": {**METADATA, "deletionTimestamp": METADATA["creationTimestamp"]},
                "status": {"phase": "Bound"},
            },
            "Status",
            "Terminating",
        ),
    ],
)
def test_small_kinds_print_what_counts(kind: Kind, fields: Json, column: str, expected: object) -> None:
    assert cells(kind, **fields)[column] == expected


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("None", None),
        ("Object", {"metadata": METADATA, "spec": 1}),
        ("Metadata", {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": METADATA}),
        ("", {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": METADATA}),
    ],
)
def test_a_row_carries_what_is_asked_for(include: str, expected: object) -> None:
    entry = table(POD, [{"metadata": METADATA, "spec": 1}], {}, version="v1", include=include, now_s=0)
    assert entry["rows"][0].get("object") == expected


def test_a_list_of_metadata_has_nothing_else() -> None:
    result = {"metadata": METADATA, "spec": 1}
    entry = metadata_list([result], {"resourceVersion": "5"}, "v1")
    assert entry["items"] == [partial_metadata(result, "v1")]
