"""All claims, in the order of their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paged_core.errors import ConfigError
from paged_core.sim.reproduce.claims import blocks, controls, memory, rates, sharing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paged_core.sim.reproduce.claims.claim import Claim


def _number(claim: Claim) -> tuple[int, str]:
    digits = claim.id.removeprefix("H")
    return (int(digits), "") if digits.isdigit() else (99, claim.id)


CLAIMS: Sequence[Claim] = tuple(
    sorted((*memory.CLAIMS, *rates.CLAIMS, *sharing.CLAIMS, *blocks.CLAIMS, *controls.CLAIMS), key=_number)
)
IDS: Sequence[str] = tuple(claim.id for claim in CLAIMS)


def chosen(ids: Iterable[str] | None) -> list[Claim]:
    """The claims of those names, in order; all of them for None. ConfigError names what does not exist."""
    if ids is None:
        return list(CLAIMS)
    wanted = {one.strip() for one in ids}
    known = {claim.id.lower(): claim for claim in CLAIMS}
    unknown = sorted(one for one in wanted if one.lower() not in known)
    if unknown or not wanted:
        raise ConfigError(f"no claim is called {', '.join(unknown) or 'nothing'}; known are {', '.join(IDS)}")
    lower = {one.lower() for one in wanted}
    return [claim for name, claim in known.items() if name in lower]
