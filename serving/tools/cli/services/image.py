"""``serving image``: the images of this machine, from archives, other programs' stores and registries."""

import json
import time
from pathlib import Path

import click

from serving.core.model.errors import InvalidValue
from serving.core.model.imagereference import parse_reference
from serving.core.model.knative import ROUTING_STATE_LABEL, SERVICE_LABEL
from serving.core.model.objects import FINISHED_PHASES, labels_of, name_of, namespace_of, nested
from serving.home.images.pullers import pull_from_registry
from serving.home.images.store import ImageStore, StoredImage
from serving.home.state import StateFolder, default_state_path
from serving.net.cluster.kinds import POD, REVISION
from serving.tools.cli.client.api import ApiClient, fail, fail_usage, state_option
from serving.tools.cli.client.objects import items_of
from serving.tools.cli.client.output import Progress, age_text, aligned, output_option

_ID_DIGITS = 12
# Phases of pods whose processes have ended.


@click.group()
def image() -> None:
    """Import, list and remove the images that pods on this machine run."""


@image.command("import")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, path_type=Path))
@click.option("--name", "names", multiple=True, help="Name of the image, instead of the one in FILE.")
@state_option
def _import(*, path: Path, names: tuple[str, ...], state_path: Path | None) -> None:
    """Unpack an image from FILE: a tar file of `docker save` or `podman save`, or an OCI layout (a folder or tar file)."""
    store = _store(state_path)
    try:
        with Progress(f"unpacking {path}"):
            images = store.add(path, names=names, is_kept=True)
    except InvalidValue as error:
        fail_usage(f"{path}: {error}")
    except OSError as error:
        fail(f"{error.filename or path}: {error.strerror}")
    for image in images:
        _print_one(store, image)


@image.command("pull")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@state_option
def _pull(*, names: tuple[str, ...], state_path: Path | None) -> None:
    """Pull images from their registries with skopeo. Credentials are those of `podman login` and `docker login`."""
    store = _store(state_path)
    for name in names:
        with Progress(f"pulling {name}"):
            image = pull_from_registry(parse_reference(name), store, is_kept=True)
        _print_one(store, image)


@image.command("list")
@output_option("table", "json", "name")
@state_option
def _list(*, output: str, state_path: Path | None) -> None:
    """List the images, the newest first."""
    store = _store(state_path)
    images = store.images()
    if output == "json":
        click.echo(json.dumps([_facts(store, image) for image in images], indent=2))
    elif output == "name":
        click.echo("\n".join(name for image in images for name in _names(store, image)))
    elif not images:
        click.echo("no images; `serving image import FILE` or `serving image pull NAME` brings one")
    else:
        rows = [("NAME", "ID", "SIZE", "AGE")]
        for image in images:
            age = age_text(time.time() - image.created_s)
            rows += [(name, image.id[:_ID_DIGITS], _size(image), age) for name in _names(store, image) or ["<none>"]]
        click.echo("\n".join(aligned(rows)))


@image.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Remove images that are in use too; their pods lose their files.")
@state_option
def _remove(*, names: tuple[str, ...], force: bool, state_path: Path | None) -> None:
    """Remove images that nothing uses, by name or by the beginning of their id."""
    store = _store(state_path)
    for name in names:
        image = store.find(name)
        if image is None:
            fail(f"no image {name}; `serving image list` shows those that are here")
        names_now = {str(reference) for reference in store.names_of(image)}
        if str(parse_reference(name)) in names_now and len(names_now) > 1:
            store.untag(name)
            click.echo(f"{name} removed; the image has other names")
            continue
        users = [] if force else _users(store, image)
        if users:
            fail(f"image {name} is in use by {', '.join(users)}; delete what uses it first, or remove it with --force")
        store.remove(image)
        click.echo(f"{name} removed")


def _users(store: ImageStore, image: StoredImage) -> list[str]:
    """The services, and pods without a service, that use an image; empty if no system runs."""
    from serving.home.images.source import images_used  # noqa: PLC0415 - it loads asyncio, which other subcommands do not need

    state = StateFolder(store.folder.parent)
    if state.holder() is None:
        return []
    api = ApiClient(state.path)
    pods = [pod for pod in items_of(api, POD, everywhere=True) if nested(pod, "status", "phase") not in FINISHED_PHASES]
    routed = [
        revision
        for revision in items_of(api, REVISION, everywhere=True)
        if labels_of(revision).get(ROUTING_STATE_LABEL) == "active"
    ]
    names: dict[str, list[str]] = {}
    for resource in (*routed, *pods):
        if image.id in images_used(resource, store):
            service = labels_of(resource).get(SERVICE_LABEL)
            user = f"{'service' if service else resource['kind'].lower()} {namespace_of(resource)}/{service or name_of(resource)}"
            names.setdefault(user, []).extend([name_of(resource)] if service and resource["kind"] == POD.name else [])
    return [f"{user} ({', '.join(its)})" if its else user for user, its in names.items()]


def _store(state_path: Path | None) -> ImageStore:
    return ImageStore(StateFolder((state_path or default_state_path()).absolute()).images)


def _print_one(store: ImageStore, image: StoredImage) -> None:
    names = ", ".join(_names(store, image)) or image.id[:_ID_DIGITS]
    click.echo(f"{names}: {_size(image)}, id {image.id[:_ID_DIGITS]}")


def _names(store: ImageStore, image: StoredImage) -> list[str]:
    return [name.short for name in store.names_of(image)]


def _size(image: StoredImage) -> str:
    return f"{image.size_bytes / 1e6:.1f} MB"


def _facts(store: ImageStore, image: StoredImage) -> dict[str, object]:
    return {
        "id": image.id,
        "names": [str(name) for name in store.names_of(image)],
        "digest": image.digest,
        "sizeBytes": image.size_bytes,
        "created": image.created_s,
    }
