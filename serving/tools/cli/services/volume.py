"""``serving volume``: folders that outlive pods, as PersistentVolumeClaims."""

import json
import os

import click

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import Object, is_being_deleted, is_true, name_of, nested
from serving.core.model.quantity import parse_bytes
from serving.home.pods.claims import ENFORCED, OVER_SIZE, users_of
from serving.home.pods.volumequota import tree_bytes
from serving.home.state import StateFolder
from serving.net.cluster.kinds import PERSISTENT_VOLUME_CLAIM, POD, REVISION
from serving.tools.cli.client.api import ApiClient, api_options, fail, fail_usage
from serving.tools.cli.client.objects import items_of, object_of
from serving.tools.cli.client.output import aligned, output_option
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.services.deployment import check_name

_output_option = output_option()


@click.group()
def volume() -> None:
    """Create, list and delete volumes, which outlive pods. `serving deploy --volume NAME:/PATH` mounts one."""


@volume.command()
@click.argument("name")
@click.option(
    "--size", default="1Gi", show_default=True, help="Maximum size, enforced where the file system has project quotas."
)
@_output_option
@api_options
def create(*, api: ApiClient, name: str, size: str, output: str) -> None:
    """Create a volume."""
    try:
        check_name(name, of="volume")
        byte_count = parse_bytes(size)
    except InvalidValue as error:
        fail_usage(f"volume {name}, --size {size}: {error}")
    if byte_count <= 0:
        fail_usage(f"--size {size}: a volume has more than 0 bytes")
    claim = {
        "apiVersion": "v1",
        "kind": PERSISTENT_VOLUME_CLAIM.name,
        "metadata": {"name": name, "namespace": api.namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}},
    }
    created = api.done("POST", path_of(PERSISTENT_VOLUME_CLAIM, api.namespace), claim)
    click.echo(json.dumps(created, indent=2) if output == "json" else f"volume/{name} created")


@volume.command("list")
@_output_option
@api_options
def _list(*, api: ApiClient, output: str) -> None:
    """List the volumes of the namespace, their sizes and users, and on one machine their folders."""
    rows = [_described(api, claim) for claim in items_of(api, PERSISTENT_VOLUME_CLAIM)]
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo(f"no volumes in namespace {api.namespace}; `serving volume create NAME` creates one", err=True)
    else:
        table = [
            [
                row["name"],
                row["status"],
                row["size"],
                "yes" if row["enforced"] else "no",
                _size_text(row),
                ", ".join(row["used_by"]),
                row["folder"],
            ]
            for row in rows
        ]
        head = ["NAME", "STATUS", "SIZE", "ENFORCED", "HOLDS", "USED BY", "FOLDER"]
        click.echo("\n".join(aligned([head, *table])))
        for row in rows:
            if row["over_size"]:
                click.echo(f"{row['name']} holds more than its size of {row['size']}", err=True)


@volume.command()
@click.argument("name")
@api_options
def delete(*, api: ApiClient, name: str) -> None:
    """Delete a volume and its data. A volume that a pod or a revision uses, even at zero pods, is not deleted."""
    path = f"{path_of(PERSISTENT_VOLUME_CLAIM, api.namespace)}/{name}"
    used_by = _described(api, object_of(api, PERSISTENT_VOLUME_CLAIM, name))["used_by"]
    if used_by:
        fail(f"volume {name} is used by {', '.join(used_by)}: delete these first, with `serving delete SERVICE`")
    api.done("DELETE", path)
    click.echo(f"volume/{name} deleted, with its data")


def _described(api: ApiClient, claim: Object) -> Object:
    name = name_of(claim)
    folder = None if api.state_path is None else StateFolder(api.state_path).volumes / api.namespace / name
    # Only the folder's owner may read the folder.
    is_readable = folder is not None and os.access(folder, os.R_OK | os.X_OK)
    return {
        "name": name,
        "status": "Terminating" if is_being_deleted(claim) else nested(claim, "status", "phase") or "Pending",
        "size": str(nested(claim, "spec", "resources", "requests", "storage") or ""),
        "enforced": is_true(claim, ENFORCED),
        "over_size": is_true(claim, OVER_SIZE),
        "holds_bytes": tree_bytes(folder) if folder and is_readable else None,
        "used_by": users_of(name, items_of(api, POD), items_of(api, REVISION)),
        "folder": str(folder or ""),
    }


def _size_text(row: Object) -> str:
    byte_count = row["holds_bytes"]
    return "" if byte_count is None else f"{byte_count / 2**20:.1f}Mi"
