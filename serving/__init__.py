"""Request-driven serverless, from the request down to the node."""

__all__ = ["__version__"]

__version__ = "0.2.0"
