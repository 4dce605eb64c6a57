"""The PagedAttention paper's experiments, run again on this engine in virtual time."""
