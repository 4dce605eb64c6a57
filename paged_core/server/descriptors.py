"""take_descriptors: room for connections. What a shell allows a program (1,024, as a rule) is few."""

from __future__ import annotations

from importlib.util import find_spec


def take_descriptors(wanted: int) -> None:
    """Let this process have as many descriptors as it may, up to `wanted`; more that it has already stay."""
    if find_spec("resource") is None:  # there is none for Windows
        return
    import resource

    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if most == resource.RLIM_INFINITY else min(most, wanted)
    if few != resource.RLIM_INFINITY and few < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
