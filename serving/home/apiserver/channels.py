"""exec and attach over a websocket: the protocols and their channels, for server and client.

The first byte of each message is its channel; since v5, a message of ``CLOSE`` and a channel closes this channel.
Source: k8s.io/apimachinery/pkg/util/remotecommand.
"""

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
