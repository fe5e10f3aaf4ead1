"""Names of the objects that the controller creates.

A child is named after its parent with a suffix. A name that would be longer than a DNS label is cut and hashed by Knative's
rule (knative.dev/pkg kmeta.ChildName), so that a name is the same here and there: ``deployment_name("hello-00001")`` is
"hello-00001-deployment".
"""

import hashlib

_LABEL_LENGTH_MAX = 63
_DIGEST_LENGTH = 32


def child_name(parent: str, suffix: str) -> str:
    """Parent and suffix, at most 63 characters: a longer parent is cut and gets the MD5 of the whole name."""
    if len(parent) + len(suffix) <= _LABEL_LENGTH_MAX:
        return parent + suffix
    head = _LABEL_LENGTH_MAX - _DIGEST_LENGTH - len(suffix)
    assert head > 0, suffix
    digest = hashlib.md5(parent.encode(), usedforsecurity=False).hexdigest()
    return parent[:head] + digest + suffix


def revision_name(configuration: str, generation: int) -> str:
    """Generation 1 of "hello" is "hello-00001"."""
    return child_name(configuration, f"-{generation:05d}")


def deployment_name(revision: str) -> str:
    """The Deployment of a revision."""
    return child_name(revision, "-deployment")


def private_service_name(revision: str) -> str:
    """The core Service that collects the pods of a revision."""
    return child_name(revision, "-private")
