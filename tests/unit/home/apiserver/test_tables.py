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
    """The table row of an object, by column name."""
    result = {"metadata": METADATA} | fields
    entry = table(kind, [result], {}, version="v1", include="None", now_s=42)
    return dict(zip([column["name"] for column in entry["columnDefinitions"]], entry["rows"][0]["cells"], strict=True))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource)
def test_every_kind_has_a_table_for_empty_objects(kind: Kind) -> None:
    entry = table(kind, [{"metadata": {}}], {}, version="v1", include="Metadata", now_s=0)
    assert len(entry["rows"][0]["cells"]) == len(entry["columnDefinitions"]) > 0


def test_service_table_has_ready_condition() -> None:
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


def test_revision_table_has_state_and_numeric_replicas() -> None:
    row = cells(REVISION, spec={"servingState": "Reserve"}, status={"actualReplicas": 0, "desiredReplicas": 2})
    assert (row["State"], row["Actual Replicas"], row["Desired Replicas"]) == ("Reserve", 0, 2)


def test_date_column_is_formatted_as_age() -> None:
    assert cells(SCALING_POLICY)["Age"] == "42s"


def test_non_string_value_is_formatted_as_string() -> None:
    assert cells(CONFIGURATION, status={"latestReadyRevisionName": 5})["LatestReady"] == "5"


def test_pod_table_has_ready_containers_and_restarts() -> None:
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
def test_pod_status_column_equals_kubectls(fields: Json, expected: str) -> None:
    assert cells(POD, **fields)["Status"] == expected


def test_pod_without_status_has_zero_ready_containers() -> None:
    assert cells(POD, spec={"containers": [{}, {}]})["Ready"] == "0/2"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready"),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "NotReady"),
        ({"spec": {"unschedulable": True}}, "NotReady,SchedulingDisabled"),
    ],
)
def test_node_status_column_has_readiness_and_scheduling(fields: Json, expected: str) -> None:
    assert cells(NODE, **fields)["Status"] == expected


def test_node_table_has_roles() -> None:
    labels = {"node-role.kubernetes.io/control-plane": "", "other": "x"}
    assert cells(NODE, metadata=METADATA | {"labels": labels})["Roles"] == "control-plane"


def test_core_service_table_has_ports_and_selector() -> None:
    row = cells(
        SERVICE, spec={"ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}], "selector": {"a": "b", "c": "d"}}
    )
    assert (row["Port(s)"], row["Selector"], row["Type"]) == ("80/TCP,53/UDP", "a=b,c=d", "ClusterIP")


def test_deployment_table_has_replicas_and_images() -> None:
    spec = {"replicas": 3, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    row = cells(DEPLOYMENT, spec=spec, status={"readyReplicas": 2})
    assert (row["Ready"], row["Containers"], row["Images"], row["Selector"]) == ("2/3", "c", "i", "<none>")


def test_endpoint_slice_table_has_three_addresses_and_remainder() -> None:
    endpoints = [{"addresses": [f"127.64.0.{last}"]} for last in range(1, 6)]
    row = cells(ENDPOINT_SLICE, addressType="IPv4", endpoints=endpoints, ports=[{"port": 8012}])
    assert (row["Endpoints"], row["Ports"]) == ("127.64.0.1,127.64.0.2,127.64.0.3 + 2 more...", "8012")


def test_event_table_has_object_message_and_last_seen() -> None:
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
def test_main_columns_of_further_kinds(kind: Kind, fields: Json, column: str, expected: object) -> None:
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
def test_row_object_follows_include_object_parameter(include: str, expected: object) -> None:
    entry = table(POD, [{"metadata": METADATA, "spec": 1}], {}, version="v1", include=include, now_s=0)
    assert entry["rows"][0].get("object") == expected


def test_metadata_list_has_partial_objects_only() -> None:
    result = {"metadata": METADATA, "spec": 1}
    entry = metadata_list([result], {"resourceVersion": "5"}, "v1")
    assert entry["items"] == [partial_metadata(result, "v1")]
