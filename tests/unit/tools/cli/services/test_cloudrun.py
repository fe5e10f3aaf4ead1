from serving.core.model.objects import Object
from serving.tools.cli.services.cloudrun import without_cloud_run

ACCOUNT = "100000000001-compute@developer.example.com"


def export() -> Object:
    return {
        "metadata": {
            "name": "orders",
            "annotations": {"run.googleapis.com/ingress": "all", "mine": "1"},
            "labels": {"cloud.googleapis.com/location": "here", "app": "orders"},
        },
        "spec": {
            "template": {
                "metadata": {"annotations": {"run.googleapis.com/startup-cpu-boost": "true", "k": "v"}},
                "spec": {
                    "serviceAccountName": ACCOUNT,
                    "nodeSelector": {"run.googleapis.com/accelerator": "l4", "zone": "a"},
                    "containers": [{"image": "x"}],
                },
            },
            "traffic": [{"percent": 100, "latestRevision": True}],
        },
    }


def test_cloud_run_fields_are_removed_and_reported() -> None:
    portable = without_cloud_run(export())
    assert portable.left_out == (
        "run.googleapis.com/ingress",
        "cloud.googleapis.com/location",
        "run.googleapis.com/startup-cpu-boost",
        f"serviceAccountName {ACCOUNT}, which is an account of Google Cloud",
        "nodeSelector run.googleapis.com/accelerator",
    )
    assert portable.body["metadata"] == {"name": "orders", "annotations": {"mine": "1"}, "labels": {"app": "orders"}}
    assert portable.body["spec"] == {
        "template": {
            "metadata": {"annotations": {"k": "v"}},
            "spec": {"nodeSelector": {"zone": "a"}, "containers": [{"image": "x"}]},
        },
        "traffic": [{"percent": 100, "latestRevision": True}],
    }


def test_internal_ingress_becomes_cluster_local_visibility() -> None:
    service = export()
    service["metadata"]["annotations"]["run.googleapis.com/ingress"] = "internal-and-cloud-load-balancing"
    portable = without_cloud_run(service)
    label = "networking.knative.dev/visibility"
    assert portable.body["metadata"]["labels"] == {"app": "orders", label: "cluster-local"}
    ingress = "run.googleapis.com/ingress internal-and-cloud-load-balancing"
    assert portable.left_out[0] == f"{ingress}, now the label {label}: cluster-local"


def test_manifest_without_cloud_run_fields_is_unchanged() -> None:
    for body in (
        {},
        {"spec": 5},
        {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {"spec": {"serviceAccountName": "me"}}}},
    ):
        assert without_cloud_run(body) is not None
        assert without_cloud_run(body).body is body
