"""One-pass statistics that merge: moments, differences between neighbours, samples and histograms."""

from .bands import BandStatistics, Group, Judged, Slab, Wanted
from .differences import SHIFTS, LastRow, pooled
from .histogram import Histogram
from .kept import from_bytes, to_bytes
from .moments import F8, Moments, balanced
from .sample import SAMPLE_PIXELS, Sample, pixel_keys, threshold

__all__ = [
    "F8",
    "SAMPLE_PIXELS",
    "SHIFTS",
    "BandStatistics",
    "Group",
    "Histogram",
    "Judged",
    "LastRow",
    "Moments",
    "Sample",
    "Slab",
    "Wanted",
    "balanced",
    "from_bytes",
    "pixel_keys",
    "pooled",
    "threshold",
    "to_bytes",
]
