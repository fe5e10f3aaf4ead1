"""What an API server counts: writes and the size of its store by its metrics, calls of each client by its audit log."""

import collections
import json
import re
from pathlib import Path

from serving.tools.cli.client.api import ApiCall, ApiClient

_WRITE = re.compile(r'verb="(POST|PUT|PATCH|APPLY|DELETE)"')
_READS = {"get", "list", "watch"}
# How our daemons are named in an audit log.
_OURS = "system:serviceaccount:knative-serving:"


class ServerCounts:
    """Counts since ``restart``. ``audit_log`` is the file of the server's audit log, None without one."""

    def __init__(self, client: ApiClient, audit_log: Path | None) -> None:
        self._client, self._audit_log = client, audit_log
        self._position = 0
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        text = self._metrics()
        self._writes, self._stored_bytes = _writes(text), _stored_bytes(text)
        self._position = self._audit_log.stat().st_size if self._audit_log else 0

    def lines(self, count: int) -> list[str]:
        """Writes, the growth of the store and calls of the daemons, each for one of ``count`` objects."""
        text = self._metrics()
        grown_kib, stored_mib = (_stored_bytes(text) - self._stored_bytes) / count / 1024, _stored_bytes(text) / 2**20
        found = [
            f"writes of all clients: {(_writes(text) - self._writes) / count:.1f} each",
            f"etcd: {grown_kib:.1f} KiB each with former versions, {stored_mib:.1f} MiB in all",
        ]
        for client, calls in sorted(self._calls().items()):
            writes = {kind: one for kind, one in calls.items() if kind != "read"}
            parts = ", ".join(f"{kind} {one / count:.1f}" for kind, one in sorted(writes.items()))
            found.append(
                f"{client}: {sum(calls.values()) / count:.1f} calls, {sum(writes.values()) / count:.1f} writes ({parts})"
            )
        return found

    def written(self) -> int:
        """Writes of all clients, without leases."""
        return _writes(self._metrics()) - self._writes

    def _metrics(self) -> str:
        with self._client.stream(ApiCall(method="GET", path="/metrics")) as response:
            return b"".join(response.pieces()).decode()

    def _calls(self) -> dict[str, collections.Counter[str]]:
        """Calls of our daemons by kind, without leases."""
        found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        if self._audit_log is None:
            return found
        with self._audit_log.open("rb") as log:
            log.seek(self._position)
            for line in log:
                one = json.loads(line)
                client, verb, place = one["user"]["username"], one["verb"], one.get("objectRef") or {}
                if client.startswith(_OURS) and place.get("resource") != "leases":
                    kind = "read" if verb in _READS else place.get("subresource") or verb
                    found[client.removeprefix(_OURS)][kind] += 1
        return found


def _writes(text: str) -> int:
    lines = (line for line in text.splitlines() if line.startswith("apiserver_request_total{"))
    return sum(
        int(float(line.rpartition(" ")[2])) for line in lines if 'resource="leases"' not in line and _WRITE.search(line)
    )


def _stored_bytes(text: str) -> float:
    """The size of etcd's file; not a number while a busy etcd does not tell it."""
    found = next((line for line in text.splitlines() if line.startswith("apiserver_storage_size_bytes{")), " nan")
    return float(found.rpartition(" ")[2])
