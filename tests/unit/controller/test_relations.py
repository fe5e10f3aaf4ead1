"""Relations: owners, and names in specs."""

from typing import Any

from serving.controller.affected import Relations, configurations_named, owners_of, revisions_named
from serving.core.model.knative import CONFIGURATION_LABEL, REVISION_LABEL
from serving.net.cluster import kinds

Json = dict[str, Any]


def labelled(name: str, label: str, owner: str) -> Json:
    return {"metadata": {"namespace": "default", "name": name, "labels": {label: owner}}}


def route(*targets: Json, traffic: tuple[Json, ...] = ()) -> Json:
    metadata = {"namespace": "default", "name": "r"}
    return {"metadata": metadata, "spec": {"traffic": list(targets)}, "status": {"traffic": list(traffic)}}


def test_relabelled_object_is_indexed_under_new_owner_only() -> None:
    known = Relations()
    for resource, label, result in (
        (kinds.REVISION, CONFIGURATION_LABEL, known.revisions_of),
        (kinds.POD, REVISION_LABEL, known.pods_of),
    ):
        first, second = labelled("x", label, "a"), labelled("x", label, "b")
        known.put(resource, ("default", "x"), before=None, after=first)
        assert (set(result(("default", "a"))), set(result(("other", "a")))) == ({"x"}, set())
        known.put(resource, ("default", "y"), before=None, after=labelled("y", label, "a"))
        known.put(resource, ("default", "x"), before=first, after=second)
        assert (set(result(("default", "a"))), set(result(("default", "b")))) == ({"y"}, {"x"})
        known.put(resource, ("default", "x"), before=second, after=None)
        assert not result(("default", "b"))


def test_httproute_is_indexed_by_its_name() -> None:
    known, key = Relations(), ("default", "hello.blue")
    result = {"metadata": {"namespace": "default", "name": "hello.blue"}}
    known.put(kinds.HTTP_ROUTE, key, before=None, after=result)
    assert set(known.httproutes_of(("default", "hello"))) == {"hello.blue"}
    known.put(kinds.HTTP_ROUTE, key, before=result, after=None)
    assert not known.httproutes_of(("default", "hello"))


def test_routes_are_indexed_by_traffic_targets() -> None:
    known, key = Relations(), ("default", "r")
    before = route({"configurationName": "hello"}, traffic=({"revisionName": "hello-00001"},))
    after = route({"revisionName": "hello-00002"})
    known.put(kinds.ROUTE, key, before=None, after=before)
    assert set(known.routes_to_configuration(("default", "hello"))) == {"r"}
    known.put(kinds.ROUTE, key, before=before, after=after)
    assert not known.routes_to_configuration(("default", "hello"))
    assert set(known.routes_to_revision(("default", "hello-00002"))) == {"r"}


def test_missing_or_unlabelled_object_has_no_relations() -> None:
    assert owners_of(None, REVISION_LABEL) == owners_of(route(), REVISION_LABEL) == set()
    assert configurations_named(None) == revisions_named(None) == set()


def test_unrelated_kinds_are_not_indexed() -> None:
    known = Relations()
    known.put(kinds.DEPLOYMENT, ("default", "x"), before=None, after=labelled("x", REVISION_LABEL, "a"))
    assert not known.pods_of(("default", "a"))
