"""What attention backends and executors of devices other than the CPU share: staging, streams, moving blocks."""
