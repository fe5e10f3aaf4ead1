"""The order for one more command beside a container that runs: an exec probe, or ``kubectl exec``."""

from pathlib import Path

import msgspec

from serving.local.orders import Launch, StartProcess

__all__ = ["beside"]


def beside(start: StartProcess, *, name: str, command: tuple[str, ...], log: str) -> StartProcess:
    """Run a command as a container is run that ``start`` has started: in its namespaces and cgroups, with its user and environment.

    ``name`` is that of the new process in its pod.
    """
    if start.launch is None:
        return msgspec.structs.replace(start, name=name, arguments=command, log=log, is_exec=True)
    folder = Path(start.launch.pid_file).parent
    pid_file = str(folder / f"{name}.pid")
    *options, _run, _detach, _option, _file, _bundle, _folder, container = start.arguments
    arguments = (*options, "exec", "--detach", "--pid-file", pid_file, container, *command)
    launch = Launch(
        pid_file=pid_file, error_log=start.launch.error_log, state=start.launch.state, cgroups=start.launch.cgroups
    )
    return msgspec.structs.replace(start, name=name, arguments=arguments, log=log, launch=launch, is_exec=True)
