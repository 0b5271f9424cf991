"""The 3-D convolutional network of Li, Zhang and Shen (2017) for pixel-centred patches.

Shape suffixes: n batch, b band, h y, w x, c channel, d spectral depth, f feature, k class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import nn

from ...pipeline.errors import ConfigError
from ._options import fraction, integer, switch

if TYPE_CHECKING:
    from torch import Tensor

SPECTRAL_DEPTHS = (7, 3)
"""Spectral extent of the kernels of the first and of the second convolution."""


class Cnn3d(nn.Module):
    """Two 3-D convolutions without any pooling, then fully connected: the class of a patch's centre pixel.

    Source: Y. Li, H. Zhang, Q. Shen, "Spectral-Spatial Classification of Hyperspectral Imagery with 3D Convolutional
    Neural Network", Remote Sensing 9(1), 67, 2017, doi:10.3390/rs9010067. C1 has `channels` kernels of 7 x 3 x 3
    (band, y, x), C2 twice as many of 3 x 3 x 3, ReLU after each; neither pads nor strides, so that a 5 x 5 patch ends
    as a spectrum of features at its centre. Bands are never pooled.

    Shapes: `x_nbhw` (batch, bands, patch, patch) -> `z_nk` (batch, classes).

    Size: 218 bands, patch 5, 6 classes, defaults: 5,394 parameters (128 + 220 in the convolutions, 5,046 fully
    connected).

    Deviations from the paper:

    - any odd patch: larger ones leave (patch - 4)^2 positions, all of which enter the fully connected layer; patches of
      1 and 3 have kernels cut to what is left (1 x 1), instead of padding with values that no sensor saw;
    - fewer than 9 bands (principal components): the spectral extent of the kernels is cut likewise;
    - C2 sums over the kernels of C1, as common re-implementations have it;
    - `hidden` > 0 adds a fully connected layer of that width before the logits; `batch_norm` normalises after each
      convolution; `dropout` acts on the flattened features (and on the hidden layer's). Logits, no softmax: the loss
      applies it. Optimiser and schedule belong to the experiment.
    - `spectral_skip` adds a linear classifier of the centre pixel's own spectrum to the logits. Reason: the kernels share
      their weights along the spectral axis, which suits neighbouring wavelengths but not principal components, each of
      which needs weights of its own; where labels are few and pixels large, little but the spectrum tells classes apart.
      The last layer of the convolutional branch then starts at zero, so that the surroundings enter only as far as they
      lower the loss (residual learning: He et al., CVPR 2016). `dropout` does not act on the spectrum. The branches meet
      in a sum, so that `stages` has a single part. Size: bands * classes + classes more.

    Parameters
    ----------
    bands, classes
        Sizes of input and output.
    patch
        Side of the patch in pixels, odd.
    channels
        Kernels of C1 (the paper's 2); C2 has twice as many.
    hidden
        Width of an additional fully connected layer, 0 for none.
    batch_norm
        Batch normalisation after each convolution.
    dropout
        Probability in [0, 1).
    spectral_skip
        Add a linear classifier of the centre pixel's spectrum to the logits.

    Raises
    ------
    ConfigError
        A value out of range, an even patch, or no patch at all.
    """

    def __init__(
        self,
        *,
        bands: int,
        classes: int,
        patch: int | None,
        channels: object = 2,
        hidden: object = 0,
        batch_norm: object = False,
        dropout: object = 0.0,
        spectral_skip: object = False,
    ) -> None:
        super().__init__()
        if patch is None or patch < 1 or patch % 2 == 0:
            raise ConfigError(
                f"patch: got {patch}; cnn3d classifies the centre pixel of a patch, so that an odd number of pixels "
                "is needed (the paper has 5); for whole tiles use the model segmenter"
            )
        self.bands, self.classes, self.patch = bands, classes, patch
        width = integer("channels", channels, 1)
        normalise = switch("batch_norm", batch_norm)
        stages: list[nn.Module] = [_AddChannel()]
        depth, side, inputs = bands, patch, 1
        for outputs, spectral in zip((width, 2 * width), SPECTRAL_DEPTHS, strict=True):
            kernel = (min(spectral, depth), min(3, side), min(3, side))
            parts: list[nn.Module] = [nn.Conv3d(inputs, outputs, kernel, bias=not normalise)]
            if normalise:
                parts.append(nn.BatchNorm3d(outputs))
            stages.append(nn.Sequential(*parts, nn.ReLU()))
            depth, side, inputs = depth - kernel[0] + 1, side - kernel[1] + 1, outputs
        stages.append(
            _head(
                inputs * depth * side * side,
                integer("hidden", hidden, 0),
                fraction("dropout", dropout),
                classes,
            )
        )
        self.stages = nn.Sequential(*stages)
        if switch("spectral_skip", spectral_skip):
            self.stages = nn.Sequential(_SpectralSkip(self.stages, nn.Linear(bands, classes)))

    def forward(self, x_nbhw: Tensor) -> Tensor:
        """Logits `z_nk` (batch, classes) of the centre pixels."""
        return cast("Tensor", self.stages(x_nbhw))


class _AddChannel(nn.Module):
    """`x_nbhw` -> `x_ncdhw` with one channel: bands become the depth of a volume."""

    def forward(self, x_nbhw: Tensor) -> Tensor:
        return x_nbhw.unsqueeze(1)


class _SpectralSkip(nn.Module):
    """Logits of a patch plus those of its centre pixel alone; the last layer of the former starts at zero."""

    def __init__(self, spatial: nn.Sequential, spectral: nn.Linear) -> None:
        super().__init__()
        self.spatial, self.spectral = spatial, spectral
        head = cast("nn.Sequential", spatial[-1])
        for value in head[-1].parameters():
            nn.init.zeros_(value)

    def forward(self, x_nbhw: Tensor) -> Tensor:
        row, col = x_nbhw.shape[2] // 2, x_nbhw.shape[3] // 2
        return cast("Tensor", self.spatial(x_nbhw)) + cast("Tensor", self.spectral(x_nbhw[:, :, row, col]))


def _head(features: int, hidden: int, dropout: float, classes: int) -> nn.Sequential:
    """Flatten, drop, (hidden layer, drop,) logits."""
    parts: list[nn.Module] = [nn.Flatten(), nn.Dropout(dropout)]
    if hidden:
        parts += [nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*parts, nn.Linear(hidden or features, classes))
