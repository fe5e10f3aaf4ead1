"""What the containers of a system leave on the machine when it has ended: networks, whose files are mounts, and cgroups."""

import hashlib
from pathlib import Path

from serving.home.containers.cgroups import find_cgroups
from serving.home.containers.gateway import gateway_of
from serving.home.containers.network import PodNetworks


def networks_of(state: Path) -> PodNetworks:
    """The networks of a system's pods."""
    return PodNetworks(state / "networks", gateway=gateway_of(state))


def cgroup_name_of(state: Path) -> str:
    """The name of the cgroup above those of a system's pods."""
    return f"serving-{hashlib.sha256(str(state).encode()).hexdigest()[:12]}"


def remove_leftovers(state: Path) -> None:
    """Remove the networks and cgroups of a system that has ended, so that its folder can be removed. Blocks."""
    if not (state / "networks").is_dir():
        # It had no containers.
        return
    networks_of(state).close()
    cgroups = find_cgroups(cgroup_name_of(state))
    if cgroups is not None:
        cgroups.remove("")
