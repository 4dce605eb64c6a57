"""The native decoder and what feeds it."""
