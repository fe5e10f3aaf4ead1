from pathlib import Path

import pytest

from serving.core.model.imagereference import parse_reference
from serving.core.model.objects import Object
from serving.home.images.source import ImagePins, images_used
from serving.home.images.store import ImageStore, StoredImage
from tests.integration.image_stage import oci_archive, tar_of


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def add(store: ImageStore, name: str, *, has_digest: bool = True) -> StoredImage:
    path = store.folder.with_name("image.tar")
    oci_archive(path, [tar_of([("file", name.encode(), 0o644)])])
    (image,) = store.add(path, names=[name], is_kept=True)
    if not has_digest:
        # As an archive of `docker save`.
        file = store.folder / image.id / "image.json"
        file.write_text(file.read_text().replace(image.digest, ""))
    return image


def pod(image: str, *, image_id: str = "", uid: str = "1") -> Object:
    statuses = [{"name": "user-container", "imageID": image_id}]
    status = {"containerStatuses": statuses, "initContainerStatuses": None}
    return {"metadata": {"uid": uid}, "spec": {"containers": [{"image": image}]}, "status": status}


def test_pod_uses_image_of_its_status_after_retagging(store: ImageStore) -> None:
    before, now = add(store, "app:1"), add(store, "app:2")
    store.name("app:1", now)
    by_digest = parse_reference("app:1").pinned(before.digest)
    assert images_used(pod("app:1", image_id=by_digest), store) == {before.id}
    assert images_used(pod("app:1", image_id=f"sha256:{before.id}"), store) == {before.id}
    assert images_used(pod("app:1"), store) == {now.id}


def test_image_without_digest_is_identified_by_id(store: ImageStore) -> None:
    image = add(store, "app:1", has_digest=False)
    store.untag("app:1")
    assert images_used(pod("app:1", image_id=f"sha256:{image.id}"), store) == {image.id}
    assert images_used(pod("app:1"), store) == set()


def test_revision_uses_its_pinned_image(store: ImageStore) -> None:
    before, now = add(store, "app:1"), add(store, "app:2")
    store.name("app:1", now)
    ImagePins(store.folder).pin("r/user-container", before)
    assert images_used(pod("app:1", uid="r"), store) == {before.id}
    assert images_used(pod("app:1", uid="other"), store) == {now.id}


@pytest.mark.parametrize("manifest", [{}, {"spec": {}}, pod("no name"), pod("absent"), {"spec": {"containers": [{}]}}])
def test_manifest_without_stored_image_uses_none(store: ImageStore, manifest: Object) -> None:
    assert images_used(manifest, store) == set()
