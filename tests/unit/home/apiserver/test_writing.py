import json

import pytest
from multidict import MultiDict

from serving.core.model.errors import Invalid
from serving.core.model.objects import Object
from serving.home.admission.admission import admit
from serving.home.apiserver.requests import target_of
from serving.home.apiserver.writing import Sent, create
from serving.home.store.memory import MemoryCluster

TEMPLATE = {"metadata": {"annotations": ["x"]}, "spec": {"containers": [{"image": "x"}]}}
POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x" * (3 * 2**19)}]}}


async def test_oversized_object_is_rejected_before_admission() -> None:
    def admit(*_: object, **__: object) -> Object:
        raise AssertionError("the object was admitted")

    cluster = MemoryCluster(admit=admit)
    sent = Sent(MultiDict(), "application/json", json.dumps(POD).encode())
    with pytest.raises(Invalid, match=r"pods: the object has \d+ bytes, 1572864 are allowed"):
        await create(cluster, target_of("/api/v1/namespaces/default/pods"), sent)
    await cluster.close()


@pytest.mark.parametrize(
    ("path", "spec"),
    [
        ("serving.knative.dev/v1/namespaces/default/services", {"template": TEMPLATE}),
        ("keda.sh/v1alpha1/namespaces/default/scaledobjects", {"scaleTargetRef": {"name": "a"}, "triggers": 5}),
    ],
)
async def test_fields_of_wrong_type_are_rejected_by_schema(path: str, spec: Object) -> None:
    cluster = MemoryCluster(admit=admit)
    body = {"metadata": {"name": "a"}, "spec": spec}
    sent = Sent(MultiDict(), "application/json", json.dumps(body).encode())
    with pytest.raises(Invalid, match="in body must be of type"):
        await create(cluster, target_of(f"/apis/{path}"), sent)
    await cluster.close()
