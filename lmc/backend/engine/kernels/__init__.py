"""Small fused kernels in Triton, each beside the torch code that defines it."""
