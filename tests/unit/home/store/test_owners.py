"""Uids of new objects: derived objects have the same uid in each run."""

import random
from uuid import UUID

import pytest

from serving.core.model.objects import Object
from serving.home.store.owners import Uids
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, Kind

OWNER = "0b1a4c1e-8a53-4a0b-9d0a-6f3a5f0d7c55"


def derived_object(name: str = "d", owner: str = OWNER, **metadata: object) -> Object:
    references = [{"uid": "another"}, {"uid": owner, "controller": True}] if owner else []
    return {"metadata": {"name": name, "namespace": "default", "ownerReferences": references, **metadata}}


def new_uids(seed: int = 0) -> Uids:
    return Uids(random.Random(seed))


def test_derived_object_has_the_same_uid_in_each_run() -> None:
    uid = new_uids(1).new(DEPLOYMENT, derived_object())
    assert uid == new_uids(2).new(DEPLOYMENT, derived_object())
    assert UUID(uid).version == 5


def test_system_object_without_owner_has_the_same_uid_in_each_run() -> None:
    body = derived_object(owner="", namespace="knative-serving")
    assert new_uids(1).new(DEPLOYMENT, body) == new_uids(2).new(DEPLOYMENT, body)


@pytest.mark.parametrize("other", [derived_object("e"), derived_object(owner="x"), derived_object(namespace="other")])
def test_derived_uid_depends_on_name_owner_and_namespace(other: Object) -> None:
    assert new_uids().new(DEPLOYMENT, other) != new_uids().new(DEPLOYMENT, derived_object())


def test_recreated_derived_object_gets_a_random_uid() -> None:
    uids = new_uids()
    first = uids.new(DEPLOYMENT, derived_object())
    uids.retire(DEPLOYMENT, first)
    second = uids.new(DEPLOYMENT, derived_object())
    assert first != second
    assert UUID(second).version == 4


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CONFIG_MAP, derived_object()),
        (DEPLOYMENT, derived_object(owner="")),
        (DEPLOYMENT, derived_object(generateName="d")),
    ],
)
def test_underived_objects_get_random_uids(kind: Kind, body: Object) -> None:
    assert UUID(new_uids(1).new(kind, body)).version == 4
    assert new_uids(1).new(kind, body) != new_uids(2).new(kind, body)


def test_remembered_retired_uids_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.home.store.owners._RETIRED_MAX", 1)
    uids = new_uids()
    first = uids.new(DEPLOYMENT, derived_object())
    uids.retire(DEPLOYMENT, first)
    uids.retire(DEPLOYMENT, "another")
    assert uids.new(DEPLOYMENT, derived_object()) == first
