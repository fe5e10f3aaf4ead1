"""The order for one more command beside a container that runs: an exec probe, or ``kubectl exec``."""

from pathlib import Path

import msgspec

from serving.home.processes.orders import StartProcess


def beside(start: StartProcess, *, name: str, command: tuple[str, ...], log: str) -> StartProcess:
    """Run a command as a container is run that ``start`` has started: in its namespaces and cgroups, with its user and environment.

    ``name`` is that of the new process in its pod. Raises ``OSError`` where the container's folder is gone.
    """
    # The input of the container is not that of commands beside it, and its readiness is not theirs.
    start = msgspec.structs.replace(start, stdin="", keeps_stdin=False, is_own_proxy=False)
    if start.launch is None:
        return msgspec.structs.replace(start, name=name, arguments=command, log=log, is_exec=True)
    folder = Path(start.launch.pid_file).parent
    pid_file, process = str(folder / f"{name}.pid"), folder / f"{name}.json"
    like = msgspec.json.decode((folder / "config.json").read_bytes())["process"]
    process.write_bytes(msgspec.json.encode({**like, "args": command}))
    *options, _run, _detach, _option, _file, _bundle, _folder, container = start.arguments
    arguments = (*options, "exec", "--detach", "--pid-file", pid_file, "--process", str(process), container)
    launch = msgspec.structs.replace(start.launch, pid_file=pid_file, root=None)
    return msgspec.structs.replace(start, name=name, arguments=arguments, log=log, launch=launch, is_exec=True)
