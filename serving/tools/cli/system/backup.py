"""``serving backup`` and ``serving restore``: save a state folder or a cluster's manifests, and restore a folder."""

import time
from datetime import UTC, datetime
from pathlib import Path

import click

from serving import __version__
from serving.core.model.errors import Unavailable
from serving.home.backup import FORMAT, BackupManifest, journal_copy, restore_backup, write_backup
from serving.home.state import BACKUP_PATH, StateFolder, default_state_path
from serving.tools.cli.client.api import ApiCall, ApiClient, Place, fail, fail_usage, place_options, state_option
from serving.tools.cli.client.output import printable

_MIB = 2**20


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--images", is_flag=True, help="Include the images of this machine.")
@click.option("--volumes", is_flag=True, help="Include the files of volumes, as they are now.")
@place_options
def backup(*, place: Place, file: Path, images: bool, volumes: bool) -> None:
    """Save services, settings, secrets, app snapshots and decisions to FILE.

    The system may be running: FILE contains all writes acknowledged before the command began. FILE contains secrets,
    and only its owner can read it. On a cluster, FILE contains YAML manifests: services, the objects that they refer
    to, and settings.
    """
    if place.state_path is None:
        if images or volumes:
            fail_usage("--images and --volumes are of one machine: a cluster has them in its registry and storage")
        # Imports for clusters and YAML.
        from serving.tools.cli.system.clusterbackup import write_cluster_backup  # noqa: PLC0415 - as said

        write_cluster_backup(place.api(), file)
        return
    state = StateFolder(place.state_path.absolute())
    if not state.journal.exists():
        fail(f"{state.path} has nothing to save: there is no {state.journal.name}; `serving up` creates one")
    content = journal_copy(state.journal) if state.holder() is None else _running_copy(ApiClient(state.path))
    manifest = BackupManifest(
        format=FORMAT, version=__version__, created_s=time.time(), has_images=images, has_volumes=volumes
    )
    size = write_backup(file, state, journal=content, manifest=manifest)
    parts = [f"{'with' if is_in else 'without'} {name}" for name, is_in in (("images", images), ("volumes", volumes))]
    click.echo(f"{file}: {size / _MIB:.2f} MiB, {', '.join(parts)}")


def _running_copy(api: ApiClient) -> bytes:
    try:
        with api.stream(ApiCall(method="POST", path=BACKUP_PATH, accept="*/*")) as response:
            return b"".join(response.pieces())
    except Unavailable as error:
        fail(api.absence(error))


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@state_option
def restore(*, file: Path, state_path: Path | None) -> None:
    """Restore the backup FILE into an empty state folder; `serving up` then starts its services."""
    state = StateFolder((state_path or default_state_path()).absolute())
    manifest = restore_backup(file, state)
    created = datetime.fromtimestamp(manifest.created_s, UTC).isoformat(timespec="seconds")
    click.echo(f"{state.path}: restored from a backup of {created} by serving {printable(manifest.version)}")
    if not manifest.has_images:
        click.echo("the backup contains no images: import the images of your services, or their pods stay pending")
    if not manifest.has_volumes:
        click.echo("the backup contains no files of volumes: volumes are empty")
