"""What the server of stats counts, one field a counter; ``/metrics`` has them by these names."""

import msgspec


class ServerCounts(msgspec.Struct, kw_only=True):
    """What became of connections and frames since the start."""

    frames: int = 0
    malformed_frames: int = 0
    late_frames: int = 0
    flooding_frames: int = 0
    connections: int = 0
    replaced_connections: int = 0
    silent_connections: int = 0
    unauthorized_connections: int = 0
    refused_connections: int = 0
    relayed_stats: int = 0

    @property
    def numbers(self) -> dict[str, int]:
        """All of them by name, as metrics are called."""
        return {f"stats_{name}_total": value for name, value in msgspec.structs.asdict(self).items()}
