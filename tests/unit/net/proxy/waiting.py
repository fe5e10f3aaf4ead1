"""A request that waits for a connection of a pool."""

from serving.net.proxy.http1.upstream import RequestCarrier


class Waiting:
    """Records the connection or the error that it receives."""

    def __init__(self) -> None:
        self.is_waiting = True
        self.upstream: RequestCarrier | None = None
        self.error: OSError | None = None

    def connected(self, upstream: RequestCarrier) -> None:
        self.is_waiting, self.upstream = False, upstream

    def unreachable(self, error: OSError) -> None:
        self.is_waiting, self.error = False, error
