"""`bench kernels`: every kernel of an attention plugin through its contract, beside what the same device can do."""
