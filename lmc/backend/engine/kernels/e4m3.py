"""The numbers of e4m3, FP8 with three bits of mantissa."""

LARGEST = 448.0
SMALLEST = 1e-12  # scale: of a row of zeros
