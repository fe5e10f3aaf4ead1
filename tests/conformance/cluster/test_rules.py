"""Validation rules of the definitions: every server rejects the same objects with the same messages."""

from serving.core.model.errors import Invalid
from serving.core.model.objects import Object
from serving.home.schemas.schema import deep_copy
from serving.net.cluster.kinds import DOMAIN_MAPPING, Kind
from serving.net.cluster.port import Cluster
from tests.unit.home.schemas.rule_cases import CASES, Json

# CEL does not see an object's namespace and knows no trigger types, so a real server accepts these.
BEYOND_CEL = {"a mapping to another namespace", "an unknown trigger"}


async def test_invalid_objects_are_rejected_with_the_expected_messages(cluster: Cluster, namespace: str) -> None:
    differing: list[tuple[str, list[str], list[str]]] = []
    for case in CASES:
        expected = [text.replace('"default"', f'"{namespace}"') for text in case.answers]
        results = await verdicts(cluster, namespace, case.kind, new=case.object, old=case.before)
        # A real server also reports violations of the general rules for names.
        is_same = set(expected) <= set(results) if expected else not results
        if not is_same and not (case.name in BEYOND_CEL and not results):
            differing.append((case.name, results, expected))
    assert differing == []


async def verdicts(cluster: Cluster, namespace: str, kind: Kind, *, new: Json, old: Json | None) -> list[str]:
    """The problems that a server reports about an object, or about a change of one."""
    body = in_namespace(new, namespace, kind)
    resource: Object | None = None
    try:
        if old is None:
            await cluster.create(kind, body, dry_run=True)
        else:
            resource = await cluster.create(kind, in_namespace(old, namespace, kind))
            body["metadata"]["resourceVersion"] = resource["metadata"]["resourceVersion"]
            await cluster.replace(kind, body, dry_run=True)
    except Invalid as error:
        return [f"{problem.where}: {problem.what}" for problem in error.problems]
    finally:
        if resource is not None:
            await cluster.delete(kind, namespace, resource["metadata"]["name"])
    return []


def in_namespace(body: Json, namespace: str, kind: Kind) -> Json:
    resource: Json = deep_copy(body)
    resource["metadata"]["namespace"] = namespace
    if kind == DOMAIN_MAPPING and resource["spec"]["ref"].get("namespace") == "default":
        resource["spec"]["ref"]["namespace"] = namespace
    return resource
