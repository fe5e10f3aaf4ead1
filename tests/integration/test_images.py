"""The image store: images pulled from registries and loaded from archives."""

import asyncio
import gzip
import hashlib
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.imagereference import parse_reference
from serving.home.images.layers import Unpacker
from serving.home.images.pullers import credentials_of, pull_from_registry
from serving.home.images.source import ImagePins, ImageSource
from serving.home.images.store import ImageStore, ImageUnavailable
from tests.integration.image_stage import oci_archive, tar_of
from tests.integration.registry_stage import a_registry, login, push


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[str]:
    """The address of a registry on this machine."""
    async with a_registry(tmp_path) as address:
        yield address


@pytest.fixture
async def closed_registry(tmp_path: Path) -> AsyncIterator[str]:
    """The address of a registry that requires a user name and a password."""
    async with a_registry(tmp_path, is_open=False) as address:
        yield address


def image(path: Path, content: str) -> Path:
    oci_archive(path, [tar_of([("file", content.encode(), 0o644)])], config={"Entrypoint": ["/x"]})
    return path


async def test_image_is_pulled_and_can_be_pulled_again_by_its_digest(registry: str, tmp_path: Path) -> None:
    push(image(tmp_path / "1.tar", "one"), f"{registry}/app:1")
    store = ImageStore(tmp_path / "images")
    stored_image = await ImageSource(store, (pull_from_registry,)).ensure(f"{registry}/app:1")
    assert (store.root_of(stored_image) / "file").read_text() == "one"
    again = pull_from_registry(
        parse_reference(f"{registry}/app@{stored_image.digest}"), ImageStore(tmp_path / "others")
    )
    assert (again.id, again.digest) == (stored_image.id, stored_image.digest)


async def test_revision_retains_its_image_when_the_tag_moves(registry: str, tmp_path: Path) -> None:
    push(image(tmp_path / "1.tar", "one"), f"{registry}/app")
    store = ImageStore(tmp_path / "images")
    source = ImageSource(store, (pull_from_registry,))
    first = await source.ensure(f"{registry}/app", key="revision-1/c")
    push(image(tmp_path / "2.tar", "two"), f"{registry}/app")
    second = pull_from_registry(parse_reference(f"{registry}/app"), store)
    written = (store.folder / "pins.json").stat().st_ino
    assert (await source.ensure(f"{registry}/app", key="revision-1/c")).id == first.id
    assert (store.folder / "pins.json").stat().st_ino == written, "a later pod of the revision writes nothing"
    assert (await source.ensure(f"{registry}/app", key="revision-2/c")).id == second.id
    assert first.id != second.id


async def test_image_missing_in_registry_is_reported(registry: str, tmp_path: Path) -> None:
    with pytest.raises(ImageUnavailable, match=f"image {registry}/none:latest: skopeo: (?!time=).*manifest unknown"):
        await ImageSource(ImageStore(tmp_path / "images"), (pull_from_registry,)).ensure(f"{registry}/none")


async def test_image_is_pulled_with_credentials_of_its_pod(closed_registry: str, tmp_path: Path) -> None:
    name = f"{closed_registry}/app"
    push(image(tmp_path / "1.tar", "one"), name)
    source = ImageSource(ImageStore(tmp_path / "images"), (pull_from_registry,))
    with pytest.raises(ImageUnavailable, match="authentication required"):
        await source.ensure(name)
    with pytest.raises(ImageUnavailable, match=r"\(with imagePullSecrets\)"):
        await source.ensure(name, credentials=credentials_of([login(closed_registry, word="wrong")]))
    refused, result = await asyncio.gather(
        source.ensure(name),
        source.ensure(name, credentials=credentials_of([login(closed_registry)])),
        return_exceptions=True,
    )
    assert isinstance(refused, ImageUnavailable), "concurrent pulls with and without credentials are separate"
    assert not isinstance(result, BaseException)
    assert await source.ensure(name) == result


async def test_open_registry_is_pulled_from_despite_credentials_for_another(registry: str, tmp_path: Path) -> None:
    push(image(tmp_path / "1.tar", "one"), f"{registry}/app")
    source = ImageSource(ImageStore(tmp_path / "images"), (pull_from_registry,))
    await source.ensure(f"{registry}/app", credentials=credentials_of([login("r.example")]))


async def test_image_with_pull_policy_never_is_not_pulled(tmp_path: Path) -> None:
    with pytest.raises(ImageUnavailable) as raised:
        await ImageSource(ImageStore(tmp_path), (pull_from_registry,)).ensure("127.0.0.1:1/app", policy="Never")
    assert raised.value.reason == "ErrImageNeverPull"


def test_layer_with_wrong_diff_id_is_rejected(tmp_path: Path) -> None:
    layer = tar_of([("file", b"1", 0o644)])
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(InvalidValue, match="a layer with the content sha256:"):
        Unpacker(root).unpack(io.BytesIO(gzip.compress(layer)), diff_id="sha256:" + "0" * 64)
    Unpacker(root).unpack(io.BytesIO(gzip.compress(layer)), diff_id=f"sha256:{hashlib.sha256(layer).hexdigest()}")


def test_damaged_blob_is_rejected_and_leaves_no_image(tmp_path: Path) -> None:
    path = image(tmp_path / "1.tar", "content-of-the-file")
    path.write_bytes(path.read_bytes().replace(b"content-of-the-file", b"content-of-the-evil"))
    with pytest.raises(InvalidValue, match="a blob with the digest"):
        ImageStore(tmp_path / "images").add(path, is_kept=True)
    assert ImageStore(tmp_path / "images").images() == []


def test_only_unused_images_are_collected(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    stored_image = store.add(image(tmp_path / "1.tar", "1"), names=["kept"], is_kept=True)[0]
    pulled = store.add(image(tmp_path / "2.tar", "2"), names=["pulled"], is_kept=False)[0]
    image_in_use = store.add(image(tmp_path / "3.tar", "3"), names=["used"], is_kept=False)[0]
    pins = ImagePins(tmp_path / "images")
    pins.pin("uid/c", image_in_use)
    assert pins.unpin(["uid"]) == {image_in_use.id}
    assert store.collect({image_in_use.id}, now_s=pulled.created_s + 10, unused_kept_s=60) == []
    assert store.collect({image_in_use.id}, now_s=pulled.created_s + 100, unused_kept_s=60) == [pulled.id]
    assert {each_stored_image.id for each_stored_image in store.images()} == {stored_image.id, image_in_use.id}
    assert pins.unpin([]) == frozenset()


def test_image_has_several_names_and_is_found_by_id(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    path = image(tmp_path / "1.tar", "1")
    stored_image = store.add(path, names=["a", "b"], is_kept=True)[0]
    assert [image_reference.short for image_reference in store.names_of(stored_image)] == ["a:latest", "b:latest"]
    by_id = store.find(stored_image.id[:12])
    assert by_id is not None
    assert by_id.id == stored_image.id
    assert store.untag("a") is None
    assert store.untag("b") == stored_image
    store.remove(stored_image)
    assert store.find("b") is None
