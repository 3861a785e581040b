"""Some durations, summed up."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Percentiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Milliseconds: mean, and what half, nine in ten and 99 in 100 stay within."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of_seconds(cls, seconds: Sequence[float]) -> "Percentiles":
        """Sum up durations in seconds; all 0 where there are none."""
        if not seconds:
            return cls(mean=0.0, p50=0.0, p90=0.0, p99=0.0)
        ms = 1e3 * np.asarray(seconds, dtype=np.float64)
        p50, p90, p99 = np.percentile(ms, (50, 90, 99)).tolist()
        return cls(mean=float(ms.mean()), p50=p50, p90=p90, p99=p99)
