"""Images of a revision by digest."""

from typing import Any

import msgspec

from serving.controller.decide import decide
from serving.controller.revisions.digests import Resolution, known_images, unresolved_images
from serving.controller.values.writes import WritePlan
from serving.core.model.objects import Object, nested
from serving.net.cluster import kinds
from serving.net.cluster.port import Create
from tests.unit.controller.builders import (
    NOW,
    NOW_S,
    SETTINGS,
    a_cache,
    a_deployment,
    a_revision,
    condition_values,
    merged,
    written_status,
)
from tests.unit.controller.revisions.test_sidecar import SIDECAR

SHA = "sha256:" + "a" * 64
PINNED = f"r.example/app@{SHA}"
KEY = (kinds.REVISION, "default", "hello-00001")
SKIPPED = frozenset({"dev.local"})


def of_images(*images: str, **spec: Any) -> Object:  # noqa: ANN401 - JSON
    containers = [{"name": f"c{index}", "image": image} for index, image in enumerate(images)]
    revision = a_revision()
    return {**revision, "spec": {**revision["spec"], "containers": containers, **spec}}


def with_status(revision: Object, *digests: str, field: str = "containerStatuses") -> Object:
    statuses = [{"name": f"c{index}", "imageDigest": digest} for index, digest in enumerate(digests)]
    return {**revision, "status": {field: statuses}}


def plan_of(revision: Object, resolution: Resolution | None = None, *, settings: Any = SETTINGS) -> WritePlan:  # noqa: ANN401
    cache = a_cache((kinds.REVISION, revision), settings=settings)
    cache.sidecar = SIDECAR
    if resolution is not None:
        assert cache.resolve(KEY[1:], revision["metadata"]["uid"], resolution) == {KEY}
    return decide(cache, KEY, now=NOW, now_s=NOW_S)


def deployment_of(plan: WritePlan) -> Object | None:
    return next(
        (dict(write.body) for write in plan.writes if isinstance(write, Create) and write.kind is kinds.DEPLOYMENT),
        None,
    )


def images_of(plan: WritePlan) -> list[str]:
    containers = nested(deployment_of(plan), "spec", "template", "spec", "containers")
    return [container["image"] for container in containers if container["name"] != "queue-proxy"]


def test_only_tagged_images_of_resolvable_registries_are_unresolved() -> None:
    revision = of_images(
        "r.example/app:1", PINNED, "dev.local/own", "Not An Image", initContainers=[{"image": "r.example/i"}]
    )
    assert unresolved_images(revision, SKIPPED) == ["r.example/app:1", "r.example/i"]


def test_digest_in_status_is_known_if_repository_matches() -> None:
    revision = of_images("r.example/app:1", "r.example/beside")
    assert known_images(with_status(revision, PINNED, f"docker.io/library/import-2026@{SHA}")) == {
        "r.example/app:1": PINNED
    }
    assert unresolved_images(with_status(revision, PINNED, ""), SKIPPED) == ["r.example/beside"]


def test_deployment_is_not_created_while_digests_are_unresolved() -> None:
    plan = plan_of(of_images("r.example/app:1"))
    assert deployment_of(plan) is None
    assert plan.unresolved == ("r.example/app:1",)
    status = written_status(plan, kinds.REVISION)
    assert condition_values(status, "ResourcesAvailable")[:2] == ("Unknown", "ResolvingDigests")


def test_missing_image_fails_revision_and_stays_unresolved() -> None:
    plan = plan_of(of_images("r.example/app:1"), Resolution(failure='Unable to fetch image "r.example/app:1": 404'))
    assert deployment_of(plan) is None
    assert plan.unresolved == ("r.example/app:1",)
    status = written_status(plan, kinds.REVISION)
    message = 'Unable to fetch image "r.example/app:1": 404'
    assert condition_values(status, "ContainerHealthy") == ("False", "ContainerMissing", message)


def test_resolved_digest_is_used_in_pods_and_status() -> None:
    revision = of_images("r.example/app:1")
    plan = plan_of(revision, Resolution(images={"r.example/app:1": PINNED}))
    assert images_of(plan) == [PINNED]
    assert plan.unresolved == ()
    cache = a_cache((kinds.REVISION, revision))
    cache.put(kinds.DEPLOYMENT, merged(a_deployment(revision, ready=1), {"spec": (deployment_of(plan) or {})["spec"]}))
    status = written_status(decide(cache, KEY, now=NOW, now_s=NOW_S), kinds.REVISION)
    assert status["containerStatuses"] == [{"name": "c0", "imageDigest": PINNED}]


def test_recreated_deployment_uses_digest_of_status() -> None:
    plan = plan_of(with_status(of_images("r.example/app:1"), PINNED))
    assert images_of(plan) == [PINNED]


def test_registry_refusal_keeps_tag_with_warning() -> None:
    plan = plan_of(of_images("r.example/app:1"), Resolution(images={"r.example/app:1": ""}, refused="401"))
    assert images_of(plan) == ["r.example/app:1"]
    assert [(note.reason, note.message, note.warning) for note in plan.notes] == [("DigestNotResolved", "401", True)]


def test_registries_skipping_tag_resolving_keep_the_tag() -> None:
    settings = msgspec.structs.replace(SETTINGS, registries_skipping_tag_resolving="dev.local, r.example")
    assert images_of(plan_of(of_images("r.example/app:1"), settings=settings)) == ["r.example/app:1"]


def test_resolution_applies_only_to_uid_that_requested_it() -> None:
    revision = of_images("r.example/app:1")
    cache = a_cache((kinds.REVISION, revision))
    assert cache.resolve(KEY[1:], "another", Resolution(failure="x")) == set()
    cache.resolve(KEY[1:], revision["metadata"]["uid"], Resolution(failure="x"))
    assert cache.resolution(KEY[1:], "another").is_pending
    cache.drop(kinds.REVISION, KEY[1:])
    assert cache.resolution(KEY[1:], revision["metadata"]["uid"]).is_pending


def test_images_are_not_resolved_without_sidecar() -> None:
    cache = a_cache((kinds.REVISION, of_images("r.example/app:1")))
    assert images_of(decide(cache, KEY, now=NOW, now_s=NOW_S)) == ["r.example/app:1"]
