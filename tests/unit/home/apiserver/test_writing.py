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


async def test_an_object_that_is_too_large_to_store_is_refused_before_it_is_checked() -> None:
    def admit(*_: object, **__: object) -> Object:
        raise AssertionError("it was checked")

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
async def test_fields_of_a_wrong_type_are_refused_without_a_warning(path: str, spec: Object) -> None:
    cluster = MemoryCluster(admit=admit)
    body = {"metadata": {"name": "a"}, "spec": spec}
    sent = Sent(MultiDict(), "application/json", json.dumps(body).encode())
    with pytest.raises(Invalid, match="in body must be of type"):
        await create(cluster, target_of(f"/apis/{path}"), sent)
    await cluster.close()
