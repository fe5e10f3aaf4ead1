"""Parses image names ("nginx", "ghcr.io/a/b:1", "r.example:5000/a@sha256:...") to their full form. Pure.

A name without a registry belongs to docker.io, and a single word to its folder ``library``. A name without a tag and a
digest means the tag ``latest``. Source: the grammar of github.com/distribution/reference.
"""

import re

import msgspec

from serving.core.model.errors import InvalidValue

_DOCKER_HUB = "docker.io"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*\Z")
_REGISTRY = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?\Z")
_TAG = re.compile(r"[\w][\w.-]{0,127}\Z", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_EXPECTED = "an image's name, such as nginx, ghcr.io/owner/app:1.2 or registry:5000/app@sha256:..."


class ImageReference(msgspec.Struct, frozen=True, kw_only=True):
    """A full image name, such as "docker.io", "library/nginx", "latest". ``digest`` is "" or begins with "sha256:"."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}{'@' + self.digest if self.digest else ''}"

    @property
    def short(self) -> str:
        """The short name, without "docker.io" and "library"."""
        text = str(self).removeprefix(f"{_DOCKER_HUB}/")
        return text.removeprefix("library/")

    def pinned(self, digest: str) -> str:
        """The image's name with a digest in place of the tag, as Kubernetes writes it."""
        return f"{self.registry}/{self.repository}@{digest}"


def parse_reference(text: str) -> ImageReference:
    """Parse an image name to its full form. Raises ``InvalidValue``."""
    rest, at, digest = text.partition("@")
    first, slash, below = rest.partition("/")
    is_registry = bool(slash) and (first == "localhost" or "." in first or ":" in first)
    registry, path = (first, below) if is_registry else (_DOCKER_HUB, rest)
    repository, colon, tag = path.partition(":")
    if registry == _DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    is_name = _REGISTRY.match(registry) and _REPOSITORY.match(repository)
    if not is_name or (colon and not _TAG.match(tag)) or (at and not _DIGEST.match(digest)):
        raise InvalidValue(text=text, expected=_EXPECTED)
    return ImageReference(
        registry=registry, repository=repository, tag=tag or ("" if digest else "latest"), digest=digest
    )
