"""The contract: what plugins import, and nothing else. One abstract class a file, its laws in its docstring.

Names are imported from their files (`from paged_core.api.scheduler import Scheduler`).
"""
