"""The interoperability cases of gRPC, between its own client and server, through proxies."""
