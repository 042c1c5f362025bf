"""Where graphs run: the protocol, the executor, and the backends."""
