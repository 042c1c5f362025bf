"""What answers requests: the protocol, and the backends."""
