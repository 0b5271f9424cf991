"""The stream under loaders and trainers of others: torchdata's StatefulDataLoader and Lightning."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from bandstream.pipeline.errors import CheckpointError
from bandstream.train.stream import PatchStream

pytestmark = pytest.mark.filterwarnings(
    # torchdata 0.11 and Lightning 2.6 call what PyTorch 2.13 deprecates
    "ignore:'set_vital' is deprecated:UserWarning",
    "ignore:.*LeafSpec.* is deprecated:FutureWarning",
    "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning",
    "ignore:This DataLoader will create:UserWarning",
)
WORKERS = [0, pytest.param(2, marks=pytest.mark.process)]


def new_stream(store, **more) -> PatchStream:
    return PatchStream(store, patch=3, batch_size=16, seed=4, flips=True, **more)


def new_loader(stream: PatchStream, workers: int, **more) -> StatefulDataLoader:
    method = {"multiprocessing_context": "fork", "timeout": 60} if workers else {}
    return StatefulDataLoader(stream, batch_size=None, num_workers=workers, **method, **more)


def epoch_of(store, epoch: int) -> list[torch.Tensor]:
    """Images of every batch of an epoch, without any loader."""
    stream = new_stream(store)
    stream.set_epoch(epoch)
    return [batch["image"].clone() for batch in stream]


def assert_same(batches: list[dict], images: list[torch.Tensor], first: int = 0) -> None:
    assert [batch["step"] for batch in batches] == list(range(first, len(images)))
    for batch, image in zip(batches, images[first:], strict=True):
        assert torch.equal(batch["image"], image)


# -- torchdata ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("stop", [0, 1, 2, 5, -1])
def test_a_stateful_loader_goes_on_where_its_state_was_taken(shared_store, workers, stop):
    """After no, few and all but the last batch of epoch 3, in a loader of its own; then whole epochs."""
    store = shared_store()
    expected = {epoch: epoch_of(store, epoch) for epoch in (3, 4)}
    stop %= len(expected[3])
    stream = new_stream(store)
    stream.set_epoch(3)
    loader = new_loader(stream, workers)
    batches = iter(loader)
    for _ in range(stop):
        next(batches)
    state = pickle.dumps(loader.state_dict())
    del batches, loader

    again = new_stream(store)
    resumed = new_loader(again, workers)
    resumed.load_state_dict(pickle.loads(state))  # noqa: S301
    again.set_epoch(3)
    assert_same(list(resumed), expected[3], stop)
    again.set_epoch(4)
    assert_same(list(resumed), expected[4])


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stateful_loader_goes_on_after_the_end_of_an_epoch(shared_store, workers):
    """Taken after the loop has ended, and after its last batch."""
    store = shared_store()
    following = epoch_of(store, 1)
    loader = new_loader(new_stream(store), workers)
    last = len(list(loader))
    ended = loader.state_dict()
    batches = iter(loader)
    for _ in range(last):
        next(batches)
    for state, first_epoch in ((ended, 1), (loader.state_dict(), 0)):
        stream = new_stream(store)
        resumed = new_loader(stream, workers)
        resumed.load_state_dict(state)
        for epoch in range(first_epoch, 2):
            stream.set_epoch(epoch)
            got = list(resumed)
            if epoch == 0:
                assert got == []
        assert_same(got, following)


@pytest.mark.process
def test_persistent_workers_of_a_stateful_loader_see_epochs_and_its_state(shared_store):
    store = shared_store()
    stream = new_stream(store)
    loader = new_loader(stream, 2, persistent_workers=True)
    for epoch in (0, 1):
        stream.set_epoch(epoch)
        assert_same(list(loader), epoch_of(store, epoch))
    stream.set_epoch(2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    again = new_stream(store)
    resumed = new_loader(again, 2, persistent_workers=True)
    resumed.load_state_dict(state)
    for epoch, first in ((2, 3), (3, 0), (4, 0)):
        again.set_epoch(epoch)
        assert_same(list(resumed), epoch_of(store, epoch), first)


def test_the_state_of_another_stream_is_refused_through_the_loader(shared_store):
    """Without workers here: torchdata waits 5 s for each worker in which any dataset refused a state."""
    store = shared_store()
    loader = new_loader(new_stream(store), 0)
    next(iter(loader))
    other = new_loader(PatchStream(store, patch=3, batch_size=16, seed=5, flips=True), 0)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(CheckpointError, match=r"seed 4.*seed 5"):
        next(iter(other))


def test_the_state_is_taken_every_few_steps_too(shared_store):
    """Between snapshots the loader itself counts on."""
    store = shared_store()
    loader = new_loader(new_stream(store), 0, snapshot_every_n_steps=4)
    batches = iter(loader)
    for _ in range(6):
        next(batches)
    resumed = new_loader(new_stream(store), 0, snapshot_every_n_steps=4)
    resumed.load_state_dict(loader.state_dict())
    assert_same(list(resumed), epoch_of(store, 0), 6)


# -- Lightning ---------------------------------------------------------------------------------------------------


class StreamPlace(pl.Callback):
    """The recipe of the README: tells the stream its epoch, and keeps where it stands in Lightning's checkpoints."""

    def __init__(self, stream: PatchStream) -> None:
        self.stream, self.step = stream, None

    def on_train_epoch_start(self, trainer, pl_module) -> None:
        self.stream.set_epoch(trainer.current_epoch)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.step = batch["step"]

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict(self.step)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.stream.load_state_dict(state_dict)
        if self.stream.finished:
            self.stream.set_epoch(self.stream.epoch + 1)


class Classifier(pl.LightningModule):
    """Mean spectrum to class; keeps what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 5)
        self.seen: list[tuple[int, int, int]] = []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, batch["step"], int(batch["tile"].sum())))
        logits = self.layer(torch.tanh(batch["image"].mean(dim=(2, 3))))
        return torch.nn.functional.cross_entropy(logits, batch["label"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def fit(store, folder: Path, workers: int, resume: str | None = None, **saves) -> Classifier:
    stream = new_stream(store)
    method = {"multiprocessing_context": "fork", "timeout": 60} if workers else {}
    loader = DataLoader(stream, batch_size=None, num_workers=workers, **method)
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[StreamPlace(stream), ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **saves)],
    )
    model = Classifier()
    trainer.fit(model, loader, ckpt_path=resume)
    return model


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_lightning_trains_and_resumes_as_if_unbroken(shared_store, tmp_path, workers):
    """Batches and weights from checkpoints in the middle, at the last batch and at the end of an epoch."""
    store = shared_store()
    steps = len(new_stream(store))
    whole = fit(store, tmp_path, workers)
    assert [seen[:2] for seen in whole.seen] == [(epoch, step) for epoch in range(3) for step in range(steps)]
    assert len({tuple(tile for e, _, tile in whole.seen if e == epoch) for epoch in range(3)}) == 3

    # in the middle of epoch 1; at the last batch of epoch 0, taken there and after its end
    places = [(steps // 2 * 3, {"every_n_train_steps": steps // 2})]
    if not workers:
        places += [(steps, {"every_n_train_steps": steps}), (steps, {"every_n_epochs": 1})]
    for at, saves in places:
        folder = tmp_path / f"{saves}"
        fit(store, folder, workers, **saves)
        again = fit(store, folder, workers, resume=str(folder / f"step={at}.ckpt"), **saves)
        assert again.seen == whole.seen[at:], saves
        for one, other in zip(again.parameters(), whole.parameters(), strict=True):
            assert torch.equal(one, other), saves
