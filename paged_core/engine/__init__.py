"""The engine: schedule, apply, submit, collect, commit, emit."""
