"""The runtime: token ids in, token ids out; knows no IR."""
