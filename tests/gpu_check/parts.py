"""The parts of the check, and how its time is shared out among them."""

from collections.abc import Mapping, Sequence

PARTS: Mapping[str, float] = {
    "kernels": 3,
    "torch": 3,
    "prepare": 5,
    "plugin": 3,
    "native": 3,
    "timing": 3,
    "peer": 2,
    "ort": 1,
}
"""Every part and its weight, those whose result is worth the most first.

What two parts need weighs more than it takes: time left over is theirs.
"""


def share(part: str, left: Sequence[str], seconds: float) -> float:
    """The seconds that a part may take: its share of those left, so that all parts together end in time.

    What a part leaves over goes to those after it.

    Args:
        part: The one that begins.
        left: All that have not begun, this one among them.
        seconds: Left for all of these.
    """
    return max(seconds, 0.0) * PARTS[part] / sum(PARTS[name] for name in left)
