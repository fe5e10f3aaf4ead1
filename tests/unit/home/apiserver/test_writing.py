import json

import pytest
from multidict import MultiDict

from serving.core.model.errors import Invalid
from serving.core.model.objects import Object
from serving.home.apiserver.requests import target_of
from serving.home.apiserver.writing import Sent, create
from serving.home.store.memory import MemoryCluster

POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x" * (3 * 2**19)}]}}


async def test_an_object_that_is_too_large_to_store_is_refused_before_it_is_checked() -> None:
    def admit(*_: object, **__: object) -> Object:
        raise AssertionError("it was checked")

    cluster = MemoryCluster(admit=admit)
    sent = Sent(MultiDict(), "application/json", json.dumps(POD).encode())
    with pytest.raises(Invalid, match=r"pods: the object has \d+ bytes, 1572864 are allowed"):
        await create(cluster, target_of("/api/v1/namespaces/default/pods"), sent)
    await cluster.close()
