"""Tensor parallel: one scheduler decides, ranks follow.

    rank 0, the user's process   scheduler ─► pass ─┬─► its part of the model ──┐ sums, logits ─► sampler
    ranks 1 …                                       └─► their parts of it ──────┘
                                          shared memory                 gloo on CPUs, NCCL on GPUs

A rank has some heads, a range of the MLP's columns, and a part of the vocabulary's logits (shares.py); two all-reduces
a layer and one gather a pass make the whole (group.py). A pass is written once to memory that all ranks read
(passes.py); ranks are processes of their own (rank.py), which rank 0 starts, feeds, watches and ends (crew.py).
"""
