"""HotspotGuard: notices that a prefix draws more traffic to its holders than is their share."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_MOST_GROUPS = 1024
_WINDOW_PER_REPLICA = 8

Group = frozenset[str]
"""The replicas that hold the most of a prompt: M."""


class HotspotGuard:
    """LMetric's guard. Calls whose prefix is held by the group M are looked at together; of the last calls, x were
    theirs and x' others'. When x / x' exceeds |M| / |M'| (M': all other replicas) and 2|M| of them in a row went to M,
    the next one goes elsewhere. Its new replica then holds the prefix, too: M grows until its share is fair.
    """

    def __init__(self) -> None:
        self._recent: deque[Group] = deque()
        self._counts: dict[Group, int] = {}
        self._streaks: OrderedDict[Group, int] = OrderedDict()

    def masks(self, group: Group, num_replicas: int) -> bool:
        """Whether the next call of `group` must go elsewhere."""
        num_others = num_replicas - len(group)
        if not group or num_others <= 0 or self._streaks.get(group, 0) < 2 * len(group):
            return False
        mine = self._counts.get(group, 0)
        return mine * num_others > (len(self._recent) - mine) * len(group)

    def note(self, group: Group, chosen: str, replicas: Collection[str]) -> None:
        """A call whose prefix `group` holds went to `chosen`, one of `replicas`."""
        self._recent.append(group)
        self._counts[group] = self._counts.get(group, 0) + 1
        while len(self._recent) > _WINDOW_PER_REPLICA * max(1, len(replicas)):
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._streaks[group] = self._streaks.get(group, 0) + 1 if chosen in group else 0
        self._streaks.move_to_end(group)
        while len(self._streaks) > _MOST_GROUPS:
            self._streaks.popitem(last=False)
