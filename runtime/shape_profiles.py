"""The shapes that a compiled engine takes, and which of its profiles a pass fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spec_trt.errors import BackendError

__all__ = ["Misfit", "Profile", "Shape", "choose_profile", "find_misfits"]

Shape = tuple[int, ...]

_REMEDIES = {
    "batch": "run fewer sequences at once, or build it again with --max-batch {found}",
    "nodes": "draft fewer nodes, or build it again with --max-nodes {found}",
    "rows": "draft fewer nodes, or build it again with --max-nodes {found}",
    "past": "build it again with --max-length {found}",
}
_OTHER = "export and build it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Shapes that an engine was tuned for.

    Attributes:
        index: Its place in the engine.
        name: What messages call it.
        smallest: Per input, the smallest shape.
        largest: Per input, the largest shape.
    """

    index: int
    name: str
    smallest: Mapping[str, Shape]
    largest: Mapping[str, Shape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A dimension of a pass that is outside a profile.

    Attributes:
        dimension: Its name in the legend of `spec_trt.runtime`, or the tensor's name and its place there.
        found: Its size.
        low: The smallest size allowed.
        high: The largest.
        profile: The profile's name.
    """

    dimension: str
    found: int
    low: int
    high: int
    profile: str

    def __str__(self) -> str:
        wanted = f"{self.low}" if self.low == self.high else f"{self.low} to {self.high}"
        remedy = _REMEDIES.get(self.dimension, _OTHER) if self.found > self.high else _OTHER
        return f"{wanted} {self.dimension} in {self.profile}, found {self.found}: {remedy.format(found=self.found)}"


def choose_profile(
    graph: str, profiles: Sequence[Profile], shapes: Mapping[str, Shape], dimensions: Mapping[str, Sequence[int | str]]
) -> Profile:
    """The first profile that a pass fits.

    Args:
        graph: The graph's name, for the message.
        profiles: The engine's.
        shapes: Of the pass's inputs, by name.
        dimensions: Per input, what its dimensions are called.

    Raises:
        BackendError: It fits none; the message is about the one that it misses least.
    """
    misfits = [find_misfits(profile, shapes, dimensions) for profile in profiles]
    for profile, found in zip(profiles, misfits, strict=True):
        if not found:
            return profile
    nearest = min(misfits, key=len)
    raise BackendError(f"the engine's graph {graph!r} takes {nearest[0]}")


def find_misfits(
    profile: Profile, shapes: Mapping[str, Shape], dimensions: Mapping[str, Sequence[int | str]]
) -> list[Misfit]:
    """What of a pass is outside a profile, each dimension named once; arguments as for `choose_profile`."""
    found: dict[str, Misfit] = {}
    for name, shape in shapes.items():
        labels = dimensions.get(name, ())
        for axis, (size, low, high) in enumerate(
            zip(shape, profile.smallest[name], profile.largest[name], strict=True)
        ):
            label = labels[axis] if axis < len(labels) else None
            dimension = label if isinstance(label, str) else f"{name}[{axis}]"
            if not low <= size <= high and dimension not in found:
                found[dimension] = Misfit(dimension=dimension, found=size, low=low, high=high, profile=profile.name)
    return list(found.values())
