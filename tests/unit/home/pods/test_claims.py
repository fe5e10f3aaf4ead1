import stat
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import Object
from serving.home.pods.claims import (
    claim_bytes,
    claim_folder,
    claim_folders,
    claim_problems,
    claim_status,
    claims_of,
    make_claim_folder,
    users_of,
)

SPEC: Object = {
    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "db"}}, {"name": "tmp", "emptyDir": {}}],
    "containers": [{"volumeMounts": [{"name": "v", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/cache"}]}],
}
SIZED: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def pod(spec: Object = SPEC, *, namespace: str = "shop") -> Object:
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": spec}


def test_claim_folder_is_below_pod_namespace(tmp_path: Path) -> None:
    assert claims_of(SPEC) == {"v": "db"}
    assert claim_folders(tmp_path, pod()) == {"v": tmp_path / "shop" / "db"}
    assert claim_folders(tmp_path, pod(namespace="other")) == {"v": tmp_path / "other" / "db"}


@pytest.mark.parametrize("name", ["../other/db", "..", ".", "", "a/b", "/etc", "a..b", "DB", "a\n", "\0"])
def test_claim_name_that_is_a_path_is_rejected(tmp_path: Path, name: str) -> None:
    spec = {**SPEC, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]}
    with pytest.raises(InvalidValue, match="a name of a PersistentVolumeClaim"):
        claim_folders(tmp_path, pod(spec))
    with pytest.raises(InvalidValue):
        claim_folder(tmp_path, name, "db")


@pytest.mark.parametrize("link", ["", "shop", "shop/db"])
def test_claim_folder_behind_a_symlink_is_rejected(tmp_path: Path, link: str) -> None:
    volumes, other = tmp_path / "volumes", tmp_path / "other"
    (other / "shop" / "db").mkdir(parents=True)
    (volumes / link).parent.mkdir(parents=True, exist_ok=True)
    (volumes / link).symlink_to(other)
    with pytest.raises(InvalidValue, match="it is a link"):
        claim_folder(volumes, "shop", "db")


def test_sub_path_of_a_claim_is_rejected(tmp_path: Path) -> None:
    mount = {"name": "v", "mountPath": "/data", "subPath": "a"}
    with pytest.raises(InvalidValue, match="subPath of v"):
        claim_folders(tmp_path, pod({**SPEC, "containers": [{"volumeMounts": [mount]}]}))
    with pytest.raises(InvalidValue, match="subPath of v"):
        claim_folders(tmp_path, pod({**SPEC, "initContainers": [{"volumeMounts": [mount]}]}))


def test_claim_folder_is_writable_inside_private_parents(tmp_path: Path) -> None:
    folder = claim_folder(tmp_path / "volumes", "shop", "db")
    make_claim_folder(folder)
    (folder / "file").touch()
    make_claim_folder(folder)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder.parents[1], folder.parent, folder)]
    assert (modes, (folder / "file").exists()) == ([0o700, 0o700, 0o777], True)
    (folder.parent / "link").symlink_to(folder)
    with pytest.raises(OSError, match="link"):
        make_claim_folder(folder.parent / "link")


def test_users_of_a_claim_include_pods_and_revisions_at_zero() -> None:
    revision = {"metadata": {"name": "r"}, "spec": SPEC}
    assert users_of("db", [pod()], [revision]) == ["pod/p", "revision/r"]
    assert users_of("other", [pod()], [revision, {"metadata": {"name": "x"}}]) == []


def test_claim_is_bound_with_requested_modes_and_size() -> None:
    enforced = {"type": "SizeEnforced", "status": "True", "reason": "ProjectQuota", "lastTransitionTime": NOW}
    bound = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    result = claim_status({"spec": SIZED}, gap="", used_bytes=None, now=NOW)
    assert result == {**bound, "conditions": [enforced]}
    assert claim_bytes({"spec": SIZED}) == 2**30
    assert claim_problems({"spec": SIZED}) == claim_problems({"spec": {"storageClassName": "local"}}) == []


def test_claim_without_size_has_no_size_condition() -> None:
    result = claim_status({"spec": {}}, gap="", used_bytes=None, now=NOW)
    assert result == {"phase": "Bound", "accessModes": [], "capacity": {}}
    assert claim_bytes({"spec": {}}) == 0


@pytest.mark.parametrize(("used_bytes", "types"), [(None, 1), (2**30, 1), (2**30 + 1, 2)])
def test_unenforced_and_exceeded_claim_sizes_are_conditions(used_bytes: int | None, types: int) -> None:
    claim: Object = {"spec": SIZED}
    claim["status"] = claim_status(claim, gap="no quotas", used_bytes=used_bytes, now=THEN)
    conditions = claim["status"]["conditions"]
    assert [(condition["type"], condition["status"]) for condition in conditions] == [
        ("SizeEnforced", "False"),
        ("OverSize", "True"),
    ][:types]
    assert conditions[0]["message"] == "no quotas"
    # Later nothing has changed, so nothing is written.
    assert claim_status(claim, gap="no quotas", used_bytes=used_bytes, now=NOW) == claim["status"]
    (enforced,) = claim_status(claim, gap="", used_bytes=used_bytes, now=NOW)["conditions"]
    assert enforced["lastTransitionTime"] == NOW


def test_unsupported_claim_fields_are_reported() -> None:
    spec = {"storageClassName": "fast", "volumeMode": "Block", "volumeName": "pv-1", "selector": {"a": "b"}}
    assert [problem.where for problem in claim_problems({"spec": spec})] == [
        "spec.storageClassName",
        "spec.volumeMode",
        "spec.volumeName",
        "spec.selector",
    ]
