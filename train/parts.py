"""The parts of a run, made from its experiment and its store."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from ..pipeline.errors import BandstreamWarning
from ..pipeline.store import SPLIT_CODE, PatchStore
from . import models
from .losses import balanced_weights
from .stream import PatchStream

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from .experiment import Experiment


def labelled_pixels(store: PatchStore) -> dict[str, int]:
    """Count the valid labelled pixels of each split."""
    totals = store.index.labelled.sum(axis=(0, 2))
    return {name: int(totals[SPLIT_CODE[name]]) for name in ("train", "validation", "test")}


def make_model(experiment: Experiment, store: PatchStore) -> nn.Module:
    """Make the experiment's network, with fresh weights, for the bands and classes of a store."""
    model = models.create(
        experiment.model.name,
        bands=store.bands,
        classes=store.classes,
        patch=experiment.patch,
        **experiment.model.options,
    )
    radius = getattr(model, "receptive_radius", 0)
    if experiment.task.kind == "segment" and radius > store.halo:
        warnings.warn(
            f"The model sees {radius} pixels around each pixel and the tiles have a halo of {store.halo}: near the edge "
            f"of a core it is trained on padding where a map has neighbours. Set tiles.halo to {radius} or more.",
            BandstreamWarning,
            stacklevel=2,
        )
    return model


def make_stream(experiment: Experiment, store: PatchStore, split: str) -> PatchStream:
    """Make the stream of one split: shuffled global batches to train, micro-batches in the store's order to evaluate."""
    training = split == "train"
    return PatchStream(
        store,
        split=split,
        patch=experiment.patch,
        batch_size=experiment.batch if training else experiment.micro,
        seed=experiment.seed,
        shuffle=training,
        balance=experiment.balance if training else None,
        last=experiment.last if training else "pad",
        rank=0,
        world_size=1,
        augment=experiment.augment if training else None,
    )


def class_weights(experiment: Experiment, store: PatchStore, device: torch.device) -> Tensor | None:
    """Return the weight of each class in the loss, (class,) on `device`, or None for equal weights."""
    if experiment.loss.class_weights == "none":
        return None
    return balanced_weights(store.index.labelled[:, SPLIT_CODE["train"]].sum(axis=0)).to(device)
