"""Pictures: which bands, which stretch, which colours; pixels compared with numpy and Pillow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from PIL import Image

from bandstream.pipeline.errors import ConfigError, LabelError
from bandstream.pipeline.pictures import (
    NODATA_GREY,
    class_palette,
    quicklook,
    rgb,
    side_by_side,
    split_picture,
)
from bandstream.pipeline.scene import make_scene

NM = np.linspace(400.0, 1000.0, 61)
RNG = np.random.default_rng(0)
CUBE = RNG.integers(100, 4000, (50, 40, 61)).astype(np.int16)


def scene(cube: np.ndarray = CUBE, chunk: int = 7, **options: object) -> xr.Dataset:
    return make_scene(da.from_array(cube, chunks=(chunk, -1, -1)), **options)


def stretched(values: np.ndarray) -> np.ndarray:
    """Stretch by the book, band by band."""
    low, high = np.percentile(values, [2, 98], axis=(0, 1))
    return np.rint(np.clip((values - low) / (high - low), 0, 1) * 255).astype(np.uint8)


@pytest.mark.parametrize(
    ("kind", "wanted", "name"),
    [("true", (660, 560, 480), "True colour"), ("cir", (860, 650, 550), "Colour-infrared")],
)
def test_bands_are_the_nearest_and_the_stretch_is_2_to_98_percent(kind, wanted, name):
    picture, caption = rgb(scene(wavelength_nm=NM, scale=1e-4), kind=kind)
    bands = [int(np.abs(NM - nm).argmin()) for nm in wanted]
    assert np.array_equal(picture, stretched(CUBE[..., bands].astype(float) * 1e-4))
    assert caption.startswith(name)
    for nm, band in zip(wanted, bands, strict=True):
        assert f"{nm} nm (band {band + 1})" in caption
    assert "2nd and 98th percentile" in caption


def test_the_order_of_the_bands_does_not_matter():
    order = RNG.permutation(61)
    shuffled = scene(CUBE[..., order], wavelength_nm=NM[order])
    assert np.array_equal(rgb(shuffled)[0], rgb(scene(wavelength_nm=NM))[0])


def test_bad_bands_are_not_shown():
    good = np.abs(NM - 660) > 1
    picture, caption = rgb(scene(wavelength_nm=NM, good_band=good))
    assert "660 nm" not in caption
    assert "650 nm" in caption or "670 nm" in caption
    assert picture.shape == (50, 40, 3)


@pytest.mark.parametrize("chunk", [1, 7, 50])
@pytest.mark.parametrize("max_side", [1, 6, 13, 49, 50])
def test_thinning_takes_every_nth_pixel_whatever_the_chunks(chunk, max_side):
    step = -(-50 // max_side)
    whole = scene(wavelength_nm=NM)
    picture, caption = rgb(scene(chunk=chunk, wavelength_nm=NM), max_side=max_side)
    expected, _ = rgb(whole.isel(y=slice(None, None, step), x=slice(None, None, step)))
    assert np.array_equal(picture, expected)
    assert max(picture.shape[:2]) <= max_side
    assert (f"every {step}" in caption) == (step > 1)


def test_a_huge_scene_is_read_chunk_by_chunk_and_only_where_rows_are_shown():
    """Of 400 chunks of 40 rows, a picture of 50 rows computes 50."""
    made: list[int] = []

    def block(block_info: dict[int, dict[str, list[tuple[int, int]]]] | None = None) -> np.ndarray:
        made.append(1)
        return np.ones((40, 8, 3), dtype=np.uint8)

    cube = da.map_blocks(
        block, chunks=((40,) * 400, (8,), (3,)), dtype=np.uint8, meta=np.ones((0, 0, 0), np.uint8)
    )
    made.clear()
    picture, _ = rgb(make_scene(cube), max_side=50)
    assert picture.shape == (50, 1, 3)
    assert len(made) == 50


def test_nodata_is_grey_and_left_out_of_the_stretch():
    cube = CUBE.copy()
    cube[:10] = -9999
    picture, _ = rgb(scene(cube, wavelength_nm=NM, nodata=-9999))
    assert (picture[:10] == NODATA_GREY).all()
    assert np.array_equal(picture[10:], rgb(scene(CUBE[10:], wavelength_nm=NM))[0])


def test_not_finite_pixels_are_grey():
    cube = CUBE.astype(np.float32)
    cube[3, 4], cube[5, 6] = np.nan, np.inf
    picture, _ = rgb(scene(cube, wavelength_nm=NM))
    assert (picture[3, 4] == NODATA_GREY).all()
    assert (picture[5, 6] == NODATA_GREY).all()


def test_a_scene_without_data_is_grey_and_the_caption_says_so():
    picture, caption = rgb(scene(np.full((5, 6, 4), -1, np.int16), nodata=-1))
    assert (picture == NODATA_GREY).all()
    assert "no pixel holds data" in caption


def test_a_constant_scene_is_middle_grey():
    picture, _ = rgb(scene(np.full((5, 6, 4), 7, np.uint8)))
    assert (picture == 128).all()


def test_a_single_band_is_grey_tones():
    picture, caption = rgb(scene(CUBE[..., :1]))
    assert caption.startswith("Single band: band 1;")
    assert np.array_equal(picture, np.repeat(stretched(CUBE[..., :1].astype(float)), 3, axis=-1))


def test_without_wavelengths_first_middle_and_last_band_are_shown():
    picture, caption = rgb(scene(CUBE[..., :9]))
    assert caption.startswith("False colour: red band 1, green band 5, blue band 9;")
    assert np.array_equal(picture, stretched(CUBE[..., [0, 4, 8]].astype(float)))


def test_a_scene_of_two_bands_works():
    picture, _ = rgb(scene(CUBE[..., :2]))
    assert np.array_equal(picture, stretched(CUBE[..., [0, 1, 1]].astype(float)))


def test_wavelengths_elsewhere_give_false_colour_with_the_longest_in_red():
    _, caption = rgb(scene(CUBE[..., :5], wavelength_nm=[2000, 2100, 2200, 2300, 2400]))
    assert caption.startswith(
        "False colour: red 2400 nm (band 5), green 2200 nm (band 3), blue 2000 nm (band 1)"
    )


def test_unknown_wavelengths_among_known_ones_are_passed_over():
    nm = NM.copy()
    nm[[0, 26]] = np.nan
    _, caption = rgb(scene(wavelength_nm=nm))
    assert "red 650 nm" in caption or "red 670 nm" in caption


@pytest.mark.parametrize(
    ("options", "match"), [({"kind": "swir"}, "true, cir"), ({"max_side": 0}, "at least 1")]
)
def test_wrong_arguments_are_named(options, match):
    with pytest.raises(ConfigError, match=match):
        rgb(scene(), **options)


def test_colours_are_all_different():
    """No two of 255 are equal; the first are those of Okabe & Ito, and a longer palette begins like a shorter."""
    colors = class_palette(255)
    assert len(set(colors)) == 255
    assert colors[:3] == ["#e69f00", "#56b4e9", "#009e73"]
    assert class_palette(32) == colors[:32]
    assert class_palette(0) == []
    assert all(len(c) == 7 and int(c[1:], 16) < 0xFFFFFF for c in colors)


def lab(linear: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of linear sRGB."""
    matrix = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    ratio = np.clip(linear, 0, 1) @ matrix.T / [0.95047, 1.0, 1.08883]
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


# Machado, Oliveira & Fernandes (2009), severity 1.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


@pytest.mark.parametrize(("sight", "apart"), [("normal", 17.0), ("protanopia", 11.0), ("deuteranopia", 11.0)])
def test_forty_colours_stay_apart_for_every_eye(sight, apart):
    """Distances in CIELAB (2.3 is just noticeable), also from the white of unlabelled pixels."""
    codes = (
        np.array([[int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in [*class_palette(40), "#ffffff"]])
        / 255.0
    )
    linear = np.where(codes <= 0.04045, codes / 12.92, ((codes + 0.055) / 1.055) ** 2.4)
    seen = lab(linear @ np.asarray(SIGHT[sight]).T)
    distance = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + 1e3 * np.eye(41)
    assert distance.min() > apart


def png(path: Path) -> np.ndarray:
    """Read a PNG with Pillow, uint8 (y, x, 3)."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def colors_of(path: Path) -> Counter[tuple[int, ...]]:
    """Count the colours of a PNG."""
    packed = png(path).astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    values, counts = np.unique(packed, return_counts=True)
    return Counter(
        {(v >> 16, v >> 8 & 255, v & 255): n for v, n in zip(values.tolist(), counts.tolist(), strict=True)}
    )


def test_quicklook_is_a_png_that_holds_the_picture(tmp_path):
    cube = np.zeros((20, 30, 61), dtype=np.int16)
    cube[:, 15:] = 100
    path = quicklook(scene(cube, wavelength_nm=NM, scene_id="two halves"), tmp_path / "q.png")
    found = colors_of(path)
    black, white = found[0, 0, 0], found[255, 255, 255]
    assert min(black, white) > 100_000


MAPS: list[Callable[[], tuple[np.ndarray | None, np.ndarray]]] = [
    lambda: (
        np.repeat([[1, 2, 0]], 30, axis=0).repeat(12, axis=1),
        np.repeat([[1, 1, 2]], 30, axis=0).repeat(12, axis=1),
    ),
    lambda: (None, np.repeat([[1, 2, 2]], 30, axis=0).repeat(12, axis=1)),
]


@pytest.mark.parametrize("maps", MAPS, ids=["with truth", "without truth"])
def test_maps_show_each_class_in_its_colour_in_proportion(maps, tmp_path):
    """Areas of the class colours on the page are as the counts of the classes (legend boxes are small)."""
    truth, predicted = maps()
    picture = np.full((*predicted.shape, 3), 90, np.uint8)
    path = side_by_side(
        tmp_path / "s.png",
        picture,
        truth,
        predicted,
        ["forest", "water"],
        ["#ff0000", "#0000ff"],
        score="OA 50 %",
    )
    found = colors_of(path)
    red, blue = found[255, 0, 0], found[0, 0, 255]
    both = [predicted] if truth is None else [truth, predicted]
    counts = np.bincount(np.concatenate(both).ravel(), minlength=3)
    assert red / blue == pytest.approx(counts[1] / counts[2], rel=0.03)
    assert found[90, 90, 90] > 100_000


@pytest.mark.parametrize("shape", [(300, 20), (20, 300), (1, 1), (1700, 1200)])
def test_pages_of_any_shape_keep_within_bounds(shape, tmp_path):
    """Strips, single pixels and large maps with 40 long class names make pages of 600 to 3,000 pixels."""
    codes = RNG.integers(0, 41, shape)
    names = [f"class {n} with a name that goes on and on and on" for n in range(40)]
    picture = np.zeros((*shape, 3), np.uint8)
    path = side_by_side(
        tmp_path / "s.png", picture, codes, codes, names, title="A title", caption="word " * 80
    )
    height, width = png(path).shape[:2]
    assert 600 <= width <= 3000
    assert 300 <= height <= 3600


def test_equal_input_gives_equal_bytes(tmp_path):
    one, two = (quicklook(scene(wavelength_nm=NM), tmp_path / name) for name in ("a.png", "b.png"))
    assert one.read_bytes() == two.read_bytes()


def test_class_numbers_without_a_name_are_refused(tmp_path):
    picture, codes = np.zeros((4, 4, 3), np.uint8), np.full((4, 4), 3)
    with pytest.raises(LabelError, match=r"`truth` holds 3; allowed are 0\.\.2"):
        side_by_side(tmp_path / "s.png", picture, codes, codes - 2, ["a", "b"])
    with pytest.raises(ConfigError, match="2 class names but 1 class colours"):
        side_by_side(tmp_path / "s.png", picture, None, codes - 2, ["a", "b"], ["#ff0000"])
    assert list(tmp_path.iterdir()) == []


def test_the_split_map_shows_each_part_in_proportion(tmp_path):
    """Training takes three times the area of the test part; codes beyond 3 are refused."""
    split = np.zeros((40, 40), np.uint8)
    split[:30, :20], split[:10, 20:] = 1, 3
    found = colors_of(split_picture(tmp_path / "s.png", split, rgb=np.zeros((40, 40, 3), np.uint8)))
    assert found[0x00, 0x72, 0xB2] / found[0x00, 0x9E, 0x73] == pytest.approx(3.0, rel=0.05)
    assert (0xE6, 0x9F, 0x00) in found
    with pytest.raises(LabelError, match=r"`split` holds 4; allowed are 0\.\.3"):
        split_picture(tmp_path / "t.png", split + 1)
