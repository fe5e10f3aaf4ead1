"""What runs containers on this machine, put together at the start of the control process."""

from pathlib import Path

from serving.home.containers.cgroups import find_cgroups
from serving.home.containers.engine import find_engine
from serving.home.containers.network import cgroup_name_of, networks_of
from serving.home.containers.podbox import ContainerHost
from serving.home.images.pullers import installed_pullers
from serving.home.images.source import ImageSource
from serving.home.images.store import ImageStore
from serving.home.state import StateFolder


def container_host(state: Path, runtime: str = "") -> tuple[ContainerHost | None, str]:
    """The host of containers, or None and why there is none. Runs a container: blocks for some tens of milliseconds.

    ``runtime`` is "crun" or "runc", "" for the first of them that works.
    """
    engine = find_engine(runtime)
    if not engine.runtime:
        return None, engine.reason
    hosts = StateFolder(state).hosts
    source = ImageSource(ImageStore(state / "images"), installed_pullers())
    if engine.is_rootless:
        return ContainerHost(runtime=engine.runtime, images=source, networks=None, cgroups=None, hosts=hosts), ""
    networks = networks_of(state)
    try:
        networks.prepare()
    except OSError as error:
        return None, f"pods cannot have networks of their own: {error.filename}: {error.strerror}"
    cgroups = find_cgroups(cgroup_name_of(state))
    return ContainerHost(runtime=engine.runtime, images=source, networks=networks, cgroups=cgroups, hosts=hosts), ""
