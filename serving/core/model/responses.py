"""Constants of HTTP responses that several parts share."""

TEXT_PLAIN = b"Content-Type: text/plain; charset=utf-8\r\n"
"""The header line of a response with a text."""

STATUS_CLASSES = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")
"""Values of labels for classes of HTTP statuses; "none" if there was no response."""
