"""What `bench peers` runs in each engine's own Python: `drive.py` measures, `with_NAME.py` speaks to one engine."""
