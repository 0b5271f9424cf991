"""A small dense network: a class for every pixel of a tile, from a window of known size.

Shape suffixes: n batch, b band, h y, w x, c channel, k class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from ...pipeline.errors import ConfigError
from ._options import fraction, integer, switch

if TYPE_CHECKING:
    from torch import Tensor


class Segmenter(nn.Module):
    """Spectral 1x1 front, residual blocks of dilated 3x3 convolutions, 1x1 head.

    Sources: residual blocks of He et al., "Deep Residual Learning for Image Recognition", CVPR 2016; dilations instead
    of strides after Yu and Koltun, "Multi-Scale Context Aggregation by Dilated Convolutions", ICLR 2016. A network of
    our own, not a published one: a few hundred labelled pixels per class do not carry a deep one.

    Shapes: `x_nbhw` (batch, bands, y, x) -> `z_nkhw` (batch, classes, y, x), any y and x.

    `receptive_radius`, the sum of the dilations, is exact: with fixed statistics (`eval`) the logits of a pixel depend
    on the square of 2 radius + 1 pixels around it, on all of it and on nothing else. There is neither pooling nor a
    stride, so that a map does not depend on how a scene is cut, given a halo of at least that radius. Pixels closer to
    the border of the input see zeros (in feature space) beyond it. In `train` mode batch statistics couple all pixels.

    Size: 30 bands, 6 classes, defaults (width 64, dilations 1 and 2): 84,870 parameters.

    Parameters
    ----------
    bands, classes
        Sizes of input and output.
    patch
        Not used: the model takes tiles of any size.
    width
        Channels after the spectral front and of all blocks.
    dilations
        Dilation of the 3x3 convolution of each block. To leave no gaps, each is at most one above twice the sum of
        those before it (1, 2, 4, ... or 1, 3, 9, ...).
    batch_norm
        Batch normalisation after each convolution but the head. Without it no pixel depends on other tiles of its
        batch, in training too, and the micro-batch is no part of the model.
    dropout
        Probability in [0, 1) with which a channel of a pixel is dropped, after the front and in each block.

    Raises
    ------
    ConfigError
        A value out of range, or dilations that leave gaps in the window.
    """

    def __init__(
        self,
        *,
        bands: int,
        classes: int,
        patch: int | None = None,
        width: object = 64,
        dilations: object = (1, 2),
        batch_norm: object = True,
        dropout: object = 0.0,
    ) -> None:
        super().__init__()
        del patch
        self.bands, self.classes = bands, classes
        channels, drop, steps = (
            integer("width", width, 1),
            fraction("dropout", dropout),
            _dilations(dilations),
        )
        self.receptive_radius: int = sum(steps)
        norm = switch("batch_norm", batch_norm)
        front = nn.Sequential(*_convolution(bands, channels, 1, 1, norm), nn.ReLU(), nn.Dropout(drop))
        blocks = [_Block(channels, step, norm, drop) for step in steps]
        self.stages = nn.Sequential(front, *blocks, nn.Conv2d(channels, classes, 1))

    def forward(self, x_nbhw: Tensor) -> Tensor:
        """Logits `z_nkhw` (batch, classes, y, x) of all pixels."""
        return cast("Tensor", self.stages(x_nbhw))


class _Block(nn.Module):
    """Dilated 3x3 convolution and 1x1 convolution beside the identity."""

    def __init__(self, channels: int, dilation: int, norm: bool, dropout: float) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_convolution(channels, channels, 3, dilation, norm),
            nn.ReLU(),
            nn.Dropout(dropout),
            *_convolution(channels, channels, 1, 1, norm),
        )

    def forward(self, x_nchw: Tensor) -> Tensor:
        return torch.relu(x_nchw + cast("Tensor", self.branch(x_nchw)))


def _convolution(inputs: int, outputs: int, size: int, dilation: int, norm: bool) -> list[nn.Module]:
    """Convolution that keeps y and x, with batch normalisation in place of the bias if asked for."""
    padding = dilation * (size // 2)
    parts: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, size, padding=padding, dilation=dilation, bias=not norm)
    ]
    return [*parts, nn.BatchNorm2d(outputs)] if norm else parts


def _dilations(value: object) -> tuple[int, ...]:
    """A non-empty list of dilations that together cover their window without gaps."""
    if not isinstance(value, list | tuple) or not value:
        raise ConfigError(f"model.dilations: got {value!r}; a list of integers such as [1, 2] is needed")
    steps = tuple(integer("dilations", step, 1) for step in cast("list[object] | tuple[object, ...]", value))
    reached = 0
    for step in steps:
        if step > 2 * reached + 1:
            raise ConfigError(
                f"model.dilations: got {list(steps)}; {step} leaves gaps, since the blocks before it reach "
                f"{reached} pixels; at most {2 * reached + 1} is allowed there"
            )
        reached += step
    return steps
