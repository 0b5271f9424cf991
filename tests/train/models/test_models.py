"""Rules of the networks: names and options, shapes, parameter counts, receptive windows, determinism, precision."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from bandstream.pipeline.errors import ConfigError
from bandstream.train.models import MODELS, create

CASES = [
    ("cnn3d", {}, 5),
    ("cnn3d", {"channels": 4, "hidden": 16, "batch_norm": True, "dropout": 0.2}, 7),
    ("segmenter", {}, None),
    ("segmenter", {"width": 12, "dilations": [1, 2, 4], "dropout": 0.2}, None),
    ("segmenter", {"width": 12, "batch_norm": False, "dropout": 0.2}, None),
]
IDS = ["cnn3d", "cnn3d-options", "segmenter", "segmenter-options", "segmenter-plain"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small gain nothing from threads, and lose much where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(
    name: str, options: dict[str, object], patch: int | None, *, bands: int = 20, seed: int = 0
) -> nn.Module:
    """Make a model of 6 classes with the weights of one seed."""
    torch.manual_seed(seed)
    return create(name, bands=bands, classes=6, patch=patch, **options)


def batch(patch: int | None, *, bands: int = 20, count: int = 4) -> torch.Tensor:
    """Standard normal input of the right size."""
    height, width = (patch, patch) if patch else (15, 13)
    return torch.randn(count, bands, height, width, generator=torch.Generator().manual_seed(5))


def parameters(model: nn.Module) -> int:
    """Count the trainable numbers."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


# --- names and options ----------------------------------------------------------------------------------------------


def test_unknown_model_names_the_nearest_and_all_allowed() -> None:
    with pytest.raises(ConfigError, match=r"'cnn3'.*did you mean 'cnn3d'.*segmenter"):
        create("cnn3", bands=5, classes=2, patch=5)


def test_unknown_option_names_the_nearest_and_the_defaults() -> None:
    with pytest.raises(ConfigError, match=r"model\.drop_out.*did you mean 'dropout'.*channels \(default 2\)"):
        create("cnn3d", bands=5, classes=2, patch=5, drop_out=0.1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cnn3d", {"channels": 0}),
        ("cnn3d", {"channels": True}),
        ("cnn3d", {"hidden": -1}),
        ("cnn3d", {"batch_norm": "yes"}),
        ("cnn3d", {"dropout": 1.0}),
        ("cnn3d", {"spectral_skip": "yes"}),
        ("segmenter", {"width": 2.5}),
        ("segmenter", {"dropout": "much"}),
        ("segmenter", {"batch_norm": 1}),
        ("segmenter", {"dilations": []}),
        ("segmenter", {"dilations": 2}),
        ("segmenter", {"dilations": [1, 0]}),
    ],
)
def test_option_out_of_range_is_refused_by_name_and_value(name: str, options: dict[str, object]) -> None:
    (key,) = options
    with pytest.raises(ConfigError, match=rf"model\.{key}: got"):
        create(name, bands=9, classes=3, patch=5, **options)


def test_dilations_that_leave_gaps_are_refused_with_the_largest_allowed() -> None:
    with pytest.raises(ConfigError, match="reach 1 pixels; at most 3"):
        create("segmenter", bands=9, classes=3, patch=None, dilations=[1, 4])


@pytest.mark.parametrize("patch", [None, 0, 4])
def test_cnn3d_refuses_what_has_no_centre_pixel(patch: int | None) -> None:
    with pytest.raises(ConfigError, match=f"patch: got {patch}"):
        create("cnn3d", bands=9, classes=3, patch=patch)


@pytest.mark.parametrize(("bands", "classes"), [(0, 3), (9, 0)])
def test_sizes_below_one_are_refused(bands: int, classes: int) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        create("cnn3d", bands=bands, classes=classes, patch=5)


@pytest.mark.parametrize("name", list(MODELS))
def test_registry_defaults_are_those_of_the_network(name: str) -> None:
    """Leaving options out and writing down the defaults of the registry give the same weights."""
    info = MODELS[name]
    patch = 5 if "classify" in info.tasks else None
    plain, spelt = make(name, {}, patch), make(name, dict(info.options), patch)
    assert [(k, v.shape) for k, v in plain.state_dict().items()] == [
        (k, v.shape) for k, v in spelt.state_dict().items()
    ]
    x_nbhw = batch(patch)
    assert torch.equal(plain.eval()(x_nbhw), spelt.eval()(x_nbhw))


# --- shapes and sizes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patch", [1, 3, 5, 7, 11])
@pytest.mark.parametrize("bands", [1, 4, 8, 9, 30, 218])
def test_cnn3d_takes_any_odd_patch_and_any_bands(patch: int, bands: int) -> None:
    model = make("cnn3d", {}, patch, bands=bands)
    assert model(batch(patch, bands=bands, count=2)).shape == (2, 6)


@pytest.mark.parametrize(("bands", "patch"), [(218, 5), (103, 5), (40, 9)])
def test_cnn3d_parameters_follow_sizes_of_public_reimplementations(bands: int, patch: int) -> None:
    """C1 2 kernels of 7x3x3, C2 4 of 3x3x3, no pooling: (bands - 8)(patch - 4)^2 positions enter the last layer.

    These sizes come from public re-implementations of the network, not from the tables of the paper.
    """
    c1, c2 = 2 * (7 * 9 + 1), 4 * (2 * 27 + 1)
    f1 = 6 * (4 * (bands - 8) * (patch - 4) ** 2 + 1)
    assert parameters(make("cnn3d", {}, patch, bands=bands)) == c1 + c2 + f1


def test_cnn3d_equals_its_formula_written_with_unfold() -> None:
    """C1 and C2 as dot products of windows, ReLU between, flattened in the order channel, band, y, x."""
    model = make("cnn3d", {}, 5, bands=12).double()
    x_nbhw = batch(5, bands=12).double()
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv3d)]
    x_ncdhw = x_nbhw[:, None]
    for conv in convolutions:
        size_d, size_h, size_w = conv.kernel_size
        windows = x_ncdhw.unfold(2, size_d, 1).unfold(3, size_h, 1).unfold(4, size_w, 1)
        x_ncdhw = torch.einsum("ncdhwijk,ocijk->nodhw", windows, conv.weight)
        assert conv.bias is not None
        x_ncdhw = torch.relu(x_ncdhw + conv.bias[:, None, None, None])
    (linear,) = [m for m in model.modules() if isinstance(m, nn.Linear)]
    expected = x_ncdhw.reshape(len(x_nbhw), -1) @ linear.weight.T + linear.bias
    torch.testing.assert_close(model(x_nbhw), expected, rtol=1e-12, atol=1e-12)


def test_segmenter_parameters_follow_the_formula_of_its_layers() -> None:
    bands, width, blocks = 30, 64, 2
    front = bands * width + 2 * width
    block = 9 * width**2 + 2 * width + width**2 + 2 * width
    assert parameters(make("segmenter", {}, None, bands=bands)) == front + blocks * block + 6 * (width + 1)


@pytest.mark.parametrize("shape_yx", [(1, 1), (3, 17), (32, 32)])
def test_segmenter_gives_logits_for_every_pixel_of_any_tile(shape_yx: tuple[int, int]) -> None:
    assert make("segmenter", {}, None).eval()(torch.randn(2, 20, *shape_yx)).shape == (2, 6, *shape_yx)


# --- what a pixel depends on ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dilations", [[1], [1, 2], [1, 1, 1], [1, 3], [1, 2, 4]])
def test_segmenter_logit_depends_on_exactly_the_window_it_states(dilations: list[int]) -> None:
    model = make("segmenter", {"dilations": dilations, "width": 48}, None).double().eval()
    radius = model.receptive_radius
    assert isinstance(radius, int)
    centre = radius + 3
    x_nbhw = torch.randn(3, 20, 2 * centre + 1, 2 * centre + 1, dtype=torch.float64, requires_grad=True)
    model(x_nbhw)[:, :, centre, centre].square().sum().backward()
    assert x_nbhw.grad is not None
    seen_hw = x_nbhw.grad.abs().sum((0, 1)) > 0
    window_hw = torch.zeros_like(seen_hw)
    window_hw[3 : 3 + 2 * radius + 1, 3 : 3 + 2 * radius + 1] = True
    assert torch.equal(seen_hw, window_hw)


@pytest.mark.parametrize("size", [5, 8, 13])
def test_segmenter_map_does_not_depend_on_the_tile_size(size: int) -> None:
    """Tiles of `size` with a halo of the stated radius, put together, are the map of the whole scene."""
    model = make("segmenter", {"dilations": [1, 2]}, None).eval()
    radius, side = int(model.receptive_radius), 26
    scene = torch.randn(1, 20, side + 2 * radius, side + 2 * radius)
    with torch.no_grad():
        whole = model(scene)[..., radius : radius + side, radius : radius + side]
        pieces = torch.full_like(whole, torch.nan)
        for row in range(0, side, size):
            for col in range(0, side, size):
                rows, cols = min(size, side - row), min(size, side - col)
                tile = model(scene[..., row : row + rows + 2 * radius, col : col + cols + 2 * radius])
                pieces[..., row : row + rows, col : col + cols] = tile[..., radius:-radius, radius:-radius]
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-5)


def test_cnn3d_sees_every_pixel_and_band_of_its_patch() -> None:
    model = make("cnn3d", {"channels": 8}, 7)
    x_nbhw = batch(7, count=16).requires_grad_()
    model(x_nbhw).square().sum().backward()
    assert x_nbhw.grad is not None
    assert bool((x_nbhw.grad.abs().sum(0) > 0).all())


# --- the spectral skip of cnn3d --------------------------------------------------------------------------------------


def with_skip(
    patch: int, options: dict[str, object] | None = None, *, bands: int = 20, seed: int = 0
) -> nn.Module:
    """Make a cnn3d with the spectral skip, with the weights of one seed."""
    return make("cnn3d", {"spectral_skip": True, **(options or {})}, patch, bands=bands, seed=seed)


def randomise(model: nn.Module) -> None:
    """Give every weight a value, so that no branch is at its zero start."""
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(std=0.3)


def test_skip_is_off_unless_asked_for_and_adds_one_linear_layer() -> None:
    """Off, weights and names are those of the network without the option; on, (bands + 1) * classes numbers more."""
    plain = make("cnn3d", {}, 5, bands=30)
    off = make("cnn3d", {"spectral_skip": False}, 5, bands=30)
    assert list(off.state_dict()) == list(plain.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(off.parameters(), plain.parameters(), strict=True))
    assert not any("spectral" in name for name, _ in plain.named_modules())
    assert parameters(with_skip(5, bands=30)) == parameters(plain) + (30 + 1) * 6


@pytest.mark.parametrize("options", [{}, {"hidden": 16, "batch_norm": True, "dropout": 0.5, "channels": 4}])
@pytest.mark.parametrize("patch", [1, 3, 5, 7])
def test_skip_starts_as_a_linear_classifier_of_the_centre_pixel(
    patch: int, options: dict[str, object]
) -> None:
    """Before the first step the convolutions contribute exactly zero, in training mode too."""
    model = with_skip(patch, options).train()
    x_nbhw = batch(patch)
    (linear,) = [m for m in model.modules() if isinstance(m, nn.Linear) and m.in_features == 20]
    assert torch.equal(model(x_nbhw), linear(x_nbhw[:, :, patch // 2, patch // 2]))
    elsewhere = torch.randn_like(x_nbhw)
    elsewhere[:, :, patch // 2, patch // 2] = x_nbhw[:, :, patch // 2, patch // 2]
    assert torch.equal(model(elsewhere), model(x_nbhw))


def test_skip_logits_are_the_sum_of_the_plain_network_and_of_a_matrix_product() -> None:
    model = with_skip(5).double()
    randomise(model)
    plain = make("cnn3d", {}, 5).double()
    values = list(model.parameters())
    assert [v.shape for v in values[-2:]] == [(6, 20), (6,)]
    with torch.no_grad():
        for mine, theirs in zip(plain.parameters(), values[:-2], strict=True):
            mine.copy_(theirs)
    x_nbhw = batch(5).double()
    expected = plain(x_nbhw) + x_nbhw[:, :, 2, 2] @ values[-2].T + values[-1]
    torch.testing.assert_close(model(x_nbhw), expected, rtol=1e-12, atol=1e-12)


def test_surroundings_of_the_centre_pixel_enter_with_the_first_step() -> None:
    """The zero start does not block learning: after one step the logits depend on the whole patch."""
    model = with_skip(5, {"channels": 8})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    nn.functional.cross_entropy(model(batch(5)), torch.tensor([0, 1, 2, 3])).backward()
    optimizer.step()
    x_nbhw = batch(5, count=16).requires_grad_()
    model(x_nbhw).square().sum().backward()
    assert x_nbhw.grad is not None
    assert bool((x_nbhw.grad.abs().sum((0, 1)) > 0).all())


def test_skip_repeats_under_one_seed() -> None:
    def gradients(seed: int) -> torch.Tensor:
        model = with_skip(5, {"dropout": 0.5}, seed=seed).train()
        randomise(model)
        model(batch(5)).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    assert torch.equal(gradients(3), gradients(3))
    assert not torch.equal(gradients(3), gradients(4))


def test_dropout_leaves_the_spectrum_of_the_skip_alone() -> None:
    model = with_skip(3, {"dropout": 0.5})
    x_nbhw = batch(3)
    assert torch.equal(model.train()(x_nbhw), model.eval()(x_nbhw))


def test_stages_of_the_skip_are_one_part_and_the_forward_pass() -> None:
    model = with_skip(5)
    randomise(model)
    assert isinstance(model.stages, nn.Sequential)
    (stage,) = model.stages
    assert torch.equal(stage(batch(5)), model(batch(5)))


# --- behaviour in training ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options", "patch"), CASES, ids=IDS)
def test_stages_in_a_row_are_the_forward_pass(
    name: str, options: dict[str, object], patch: int | None
) -> None:
    model = make(name, options, patch).eval()
    stages = model.stages
    assert isinstance(stages, nn.Sequential)
    assert len(stages) >= 3
    x_nbhw = batch(patch)
    value = x_nbhw
    for stage in stages:
        value = stage(value)
    assert torch.equal(value, model(x_nbhw))
    assert sum(parameters(stage) for stage in stages) == parameters(model)


@pytest.mark.parametrize(("name", "options", "patch"), CASES, ids=IDS)
def test_one_seed_gives_one_training_step(name: str, options: dict[str, object], patch: int | None) -> None:
    """Weights, dropout and gradients repeat under `torch.manual_seed`; another seed gives others."""

    def gradients(seed: int) -> torch.Tensor:
        model = make(name, options, patch, seed=seed).train()
        model(batch(patch)).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    first = gradients(3)
    assert torch.equal(first, gradients(3))
    assert not torch.equal(first, gradients(4))
    assert bool(torch.isfinite(first).all())


@pytest.mark.parametrize(("name", "options", "patch"), CASES, ids=IDS)
def test_eval_mode_is_per_sample_and_repeats(
    name: str, options: dict[str, object], patch: int | None
) -> None:
    """Evaluated alone or beside others, a sample gets the same logits; in training mode options with noise do not."""
    model = make(name, options, patch)
    x_nbhw = batch(patch)
    with torch.no_grad():
        if options:
            assert not torch.equal(model.train()(x_nbhw), model(x_nbhw))
        model.eval()
        together = model(x_nbhw)
        alone = torch.cat([model(x_nbhw[i : i + 1]) for i in range(len(x_nbhw))])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "options", "patch"), CASES, ids=IDS)
def test_bfloat16_autocast_stays_close_and_trains(
    name: str, options: dict[str, object], patch: int | None
) -> None:
    model = make(name, options, patch).eval()
    x_nbhw = batch(patch)
    with torch.no_grad():
        exact = model(x_nbhw)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = model(x_nbhw)
    assert z.dtype == torch.bfloat16
    assert float((z.detach().float() - exact).abs().max()) < 0.05 * float(exact.abs().max())
    z.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "options", "patch"),
    [("cnn3d", {"channels": 8}, 3), ("segmenter", {"width": 16, "dilations": [1]}, None)],
)
def test_model_learns_the_sign_of_one_band(name: str, options: dict[str, object], patch: int | None) -> None:
    """The class is the sign of one band at the (centre) pixel: new samples are classified nearly without error."""
    torch.manual_seed(1)
    model = create(name, bands=12, classes=2, patch=patch, **options)
    side = patch or 7
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x_nbhw = torch.randn(count, 12, side, side)
        y_nhw = (x_nbhw[:, 4] > 0).long()
        return x_nbhw, y_nhw[:, side // 2, side // 2] if patch else y_nhw

    for _ in range(80):
        x_nbhw, y = draw(64 if patch else 4)
        loss = nn.functional.cross_entropy(model(x_nbhw), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x_nbhw, y = draw(400 if patch else 16)
    with torch.no_grad():
        assert float((model.eval()(x_nbhw).argmax(1) == y).float().mean()) > 0.9
