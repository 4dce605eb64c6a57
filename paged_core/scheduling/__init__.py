"""Parts for schedulers that serve running groups first. Scheduler plugins may build on it."""
