"""From patch stores to batches: the order of samples, reading and decoding, augmentation, and where a stream stands."""

from __future__ import annotations

from .augment_config import AugmentConfig
from .device import DeviceFeed
from .patch_stream import Batch, PatchStream

__all__ = ["AugmentConfig", "Batch", "DeviceFeed", "PatchStream"]
