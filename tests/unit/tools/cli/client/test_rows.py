from typing import Any

from serving.core.model.knative import CONDITION_DORMANT
from serving.tools.cli.client.rows import dormant_counts, pods_of, revision_row, service_row, table_rows, traffic_text

Json = dict[str, Any]


def service(ready: str, *targets: Json, reason: str = "") -> Json:
    condition = {"type": "Ready", "status": ready, "reason": reason}
    return {
        "metadata": {"name": "a", "creationTimestamp": "1970-01-01T00:00:00Z"},
        "status": {"url": "http://a.b.c", "traffic": list(targets), "conditions": [condition]},
    }


def test_service_row_shows_its_url_or_failure_reason() -> None:
    row = service_row(service("True", {"revisionName": "a-00001", "percent": 100}), pods="2", now_s=60)
    assert row == ["a", "True", "2", "00001", "60s", "http://a.b.c"]
    row = service_row(service("False", reason="RevisionFailed"), pods="", now_s=60)
    assert row == ["a", "False", "", "", "60s", "RevisionFailed; see `serving describe a`"]
    assert service_row({"metadata": {"name": "a"}}, pods="", now_s=0) == ["a", "Unknown", "", "", "", ""]


def test_traffic_shares_of_a_revision_are_summed() -> None:
    targets = [("a-00001", 60), ("a-00002", 30), ("a-00001", 10), ("a-00003", 0)]
    split = service("True", *({"revisionName": name, "percent": percent} for name, percent in targets))
    assert traffic_text(split) == "00001 70% 00002 30%"


def revision(name: str, actual: int, desired: int) -> Json:
    labels = {"serving.knative.dev/service": "a"}
    status = {"actualReplicas": actual, "desiredReplicas": desired}
    return {"metadata": {"name": name, "namespace": "n", "labels": labels}, "spec": {}, "status": status}


def test_pods_of_all_revisions_of_a_service_are_summed() -> None:
    assert pods_of([revision("a-1", 1, 1), revision("a-2", 1, 3)], {}) == {("n", "a"): "2/4"}
    assert pods_of([revision("a-1", 0, 0)], {}) == {("n", "a"): "0"}


def dormant_pod(revision: str, status: str) -> Json:
    metadata = {"name": "p", "namespace": "n", "labels": {"serving.knative.dev/revision": revision}}
    return {"metadata": metadata, "status": {"conditions": [{"type": CONDITION_DORMANT, "status": status}]}}


def test_pod_count_shows_the_number_of_dormant_pods() -> None:
    dormant = dormant_counts([dormant_pod("a-1", "True"), dormant_pod("a-1", "True"), dormant_pod("a-2", "False")])
    assert dormant == {("n", "a-1"): 2}
    assert pods_of([revision("a-1", 2, 2), revision("a-2", 1, 1)], dormant) == {("n", "a"): "3, 2 dormant"}
    assert revision_row(revision("a-1", 2, 2), now_s=0, dormant_count=2)[3] == "2 dormant"


def test_revision_row_shows_state_and_pods() -> None:
    assert revision_row(revision("a-1", 1, 3), now_s=0) == ["a-1", "Unknown", "", "1/3", "", ""]


def test_server_table_is_shown_without_wide_columns() -> None:
    table = {
        "columnDefinitions": [{"name": "Name"}, {"name": "Wide", "priority": 1}, {"name": "Count", "priority": 0}],
        "rows": [{"cells": ["x", "y", 3], "object": {"metadata": {"namespace": "n"}}}, {"cells": ["z", "y", None]}],
    }
    assert table_rows(table, everywhere=False) == (["NAME", "COUNT"], [["x", "3"], ["z", ""]])
    assert table_rows(table, everywhere=True)[1] == [["n", "x", "3"], ["", "z", ""]]
