"""Pulls images into the store: from podman, buildah or docker on this machine, and from registries by skopeo.

Each tool is used as installed: its storage, mirrors and trust are configured by its users. Credentials come from a
pod's Secrets, or from the usual files (``podman login``, ``docker login``). Everything here blocks.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.imagereference import ImageReference
from serving.core.model.objects import Object
from serving.core.model.pullsecrets import auths_of
from serving.home.images.store import ImageStore, ImageUnavailable, Puller, StoredImage

_PULL_MAX_S = 900.0
_CHECK_MAX_S = 20.0
_LOCAL = ("localhost", "127.", "[::1]")
# Registries of locally built images, as in Knative's registries-skipping-tag-resolving.
_NEVER_PULLED = frozenset({"dev.local", "ko.local", "kind.local", "localhost"})
_ERROR_CHARACTERS_MAX = 300
# A log line of podman and skopeo: time="..." level=fatal msg="...".
_MESSAGE = re.compile(r'^time=.* msg="(.*)"$')


def installed_pullers() -> tuple[Puller, ...]:
    """The pullers whose tool is installed: local ones first, registries last."""
    engines: list[Puller] = []
    if shutil.which("podman"):
        engines.append(_from_podman)
    elif shutil.which("buildah"):
        engines.append(_from_buildah)
    if shutil.which("docker"):
        engines.append(_from_docker)
    return (*engines, pull_from_registry)


def _from_podman(reference: ImageReference, store: ImageStore, _credentials: bytes) -> StoredImage:
    name = str(reference)
    _run(name, ["podman", "image", "exists", name], within_s=_CHECK_MAX_S, missing="is not in podman's storage")
    return _saved(
        reference, store, lambda path: ["podman", "image", "save", "-q", "--format", "oci-archive", "-o", path, name]
    )


def _from_buildah(reference: ImageReference, store: ImageStore, _credentials: bytes) -> StoredImage:
    name = str(reference)
    inspect = ["buildah", "inspect", "--type", "image", name]
    _run(name, inspect, within_s=_CHECK_MAX_S, missing="is not in buildah's storage")
    return _saved(reference, store, lambda path: ["buildah", "push", "-q", name, f"oci-archive:{path}"])


def _from_docker(reference: ImageReference, store: ImageStore, _credentials: bytes) -> StoredImage:
    name = reference.short
    _run(name, ["docker", "image", "inspect", name], within_s=_CHECK_MAX_S, missing="is not in docker's storage")
    return _saved(reference, store, lambda path: ["docker", "image", "save", "-o", path, name])


def pull_from_registry(
    reference: ImageReference, store: ImageStore, credentials: bytes = b"", *, is_kept: bool = False
) -> StoredImage:
    """Pull an image from its registry with skopeo. For a registry on this machine TLS is optional.

    ``credentials`` is the content of a credentials file (containers-auth.json(5)). If they fail, those of this
    machine's user are tried. ``is_kept``: a user pulls the image, so it is never removed automatically.

    Raises:
        ImageUnavailable: when skopeo is not installed, or the registry does not provide the image.
    """
    if reference.registry in _NEVER_PULLED:
        raise ImageUnavailable(
            reference.short, f"is not on this machine, and nothing is pulled from {reference.registry}"
        )
    if shutil.which("skopeo") is None:
        why = "is not on this machine, and a registry needs skopeo (apt-get install skopeo)"
        raise ImageUnavailable(reference.short, why)
    if credentials:
        try:
            with tempfile.NamedTemporaryFile(prefix="serving-auth-") as file:
                file.write(credentials)
                file.flush()
                return _pull(reference, store, is_kept=is_kept, options=["--authfile", file.name])
        except ImageUnavailable as error:
            refused = error
        try:
            return _pull(reference, store, is_kept=is_kept)
        except ImageUnavailable:
            raise ImageUnavailable(reference.short, f"{refused.why} (with imagePullSecrets)") from refused
    return _pull(reference, store, is_kept=is_kept)


def _pull(reference: ImageReference, store: ImageStore, *, is_kept: bool, options: Sequence[str] = ()) -> StoredImage:
    name = str(reference)
    # skopeo accepts a tag or a digest, and the digest is more specific.
    source = f"docker://{name.replace(':' + reference.tag + '@', '@')}" if reference.digest else f"docker://{name}"
    is_local = reference.registry.startswith(_LOCAL)
    verify = ["--tls-verify=false"] if is_local else []
    inspect = ["skopeo", "inspect", "--no-tags", "--format", "{{.Digest}}", *options, *verify, source]
    digest = reference.digest or _run(name, inspect, within_s=_CHECK_MAX_S * 3).strip()
    pinned = source.partition("@")[0].removesuffix(f":{reference.tag}") if reference.tag else source.partition("@")[0]
    verify = ["--src-tls-verify=false"] if is_local else []

    def command(path: str) -> list[str]:
        return ["skopeo", "copy", "-q", *options, *verify, f"{pinned}@{digest}", f"oci-archive:{path}"]

    return _saved(reference, store, command, digest=digest, is_kept=is_kept)


def _saved(
    reference: ImageReference,
    store: ImageStore,
    command: Callable[[str], list[str]],
    *,
    digest: str = "",
    is_kept: bool = False,
) -> StoredImage:
    store.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store.folder, prefix=".pull-") as folder:
        path = str(Path(folder) / "image.tar")
        _run(reference.short, command(path), within_s=_PULL_MAX_S)
        try:
            return store.add(Path(path), names=[str(reference)], digest=digest, is_kept=is_kept)[0]
        except InvalidValue as error:
            raise ImageUnavailable(reference.short, str(error)) from error
        except OSError as error:
            raise ImageUnavailable(reference.short, f"{error.filename or store.folder}: {error.strerror}") from error


def _run(image: str, command: Sequence[str], *, within_s: float, missing: str = "") -> str:
    """Run a tool and return its output. Raises ``ImageUnavailable`` for ``image`` if it fails.

    The tool fails if it takes more than ``within_s`` seconds. ``missing`` replaces its error message; "" keeps it.
    """
    try:
        done = subprocess.run(  # noqa: S603 - tools that are installed here
            command, capture_output=True, check=False, timeout=within_s, stdin=subprocess.DEVNULL, env=dict(os.environ)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageUnavailable(image, f"{command[0]}: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        message = _MESSAGE.sub(r"\1", (lines or ["failed"])[-1]).replace('\\"', '"')
        raise ImageUnavailable(image, missing or f"{command[0]}: {message[-_ERROR_CHARACTERS_MAX:]}")
    return done.stdout.decode(errors="replace")


def credentials_of(secrets: Iterable[Object]) -> bytes:
    """The credentials file from Secrets; empty without any. Raises ``InvalidValue`` for a Secret that has none."""
    auths = auths_of(secrets)
    return msgspec.json.encode({"auths": {key: {"auth": auth} for key, auth in auths.items()}}) if auths else b""
