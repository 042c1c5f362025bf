"""Attention of a pass over slots: one interface, in torch, by tiles on a GPU, and by FlashInfer."""
