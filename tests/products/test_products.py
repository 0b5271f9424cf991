"""The generated files, opened with plain libraries, hold by the published formula what their truth says."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import h5py
import netCDF4
import numpy as np
import pytest
import rasterio
import scipy.io
import spectral.io.envi

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def same(found, truth):
    """The numbers agree, and no data stands where the truth has NaN."""
    np.testing.assert_allclose(found, truth.physical_yxb, rtol=2e-6, atol=1e-9)


def test_every_product_is_consistent_in_itself(products, tmp_path):
    """Physical = raw * scale + offset, no data where the mask says, every band and pixel distinct."""
    for name in products.NAMES:
        whole = products.make(name, tmp_path / name)
        for part in (whole.parts or {"": whole}).values():
            if not part.raw_yxb.size:
                continue
            raw, bad = part.raw_yxb.astype(float), part.nodata_mask_yxb
            assert raw.shape == part.physical_yxb.shape == bad.shape, name
            assert raw.shape[2] == part.wavelength_nm.size, name
            expected = np.where(bad, np.nan, raw * part.scale + part.offset)
            np.testing.assert_allclose(part.physical_yxb, expected, rtol=1e-9, atol=1e-9, err_msg=name)
            assert all(path.exists() for path in part.paths), name
            good = part.good() & ~bad.all(axis=(0, 1))
            usable = ~bad[:, :, good].any(axis=2)
            np.testing.assert_array_equal(part.valid_yx, usable, err_msg=name)
            means = part.physical_yxb[:, :, good][usable].mean(axis=0)
            assert np.unique(means).size >= 0.99 * means.size, f"{name}: bands alike"
            spectra = part.physical_yxb[:, :, good][usable]
            assert len(np.unique(spectra, axis=0)) == usable.sum(), f"{name}: pixels alike"
            if part.nodata is not None and not np.isnan(part.nodata):
                np.testing.assert_array_equal(
                    (part.raw_yxb == part.nodata)[:, :, good], bad[:, :, good], err_msg=name
                )


def test_a_seed_changes_the_numbers_and_repeats(products, tmp_path):
    a, b, c = (products.make("emit_rfl", tmp_path / str(i), seed=s).raw_yxb for i, s in enumerate((1, 1, 2)))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


@pytest.mark.parametrize("level", ["l1", "l1g", "l2b", "l2c", "l2d"])
def test_prisma(products, tmp_path, level):
    """The published formula per detector; an all-zero spectrum is missing, a single zero only in L2."""
    variants = {"scale_factor": 50.0, "offset": 0.25} if level == "l1" else {"absent": (0, 1)}
    truth = products.make(f"prisma_{level}", tmp_path, **variants)
    parts = []
    with h5py.File(truth.paths[0]) as file:
        a = file.attrs
        shown = level.removesuffix("g").upper()
        assert a["Processing_Level"].decode() == shown[1:]
        swath = file[f"HDFEOS/SWATHS/PRS_{shown}_HCO"]
        for name in ("Vnir", "Swir"):
            cube = swath[f"Data Fields/{name.upper()}_Cube"][()]
            assert cube.dtype == np.uint16
            assert cube.shape[1] == a[f"List_Cw_{name}"].size == {"Vnir": 66, "Swir": 173}[name]
            raw = cube.transpose(0, 2, 1).astype(float)
            if shown == "L1":
                parts.append(raw / a[f"ScaleFactor_{name}"] - a[f"Offset_{name}"])
            else:
                low, high = (float(a[f"L2Scale{name}{end}"]) for end in ("Min", "Max"))
                parts.append(np.where(raw == 0, np.nan, low + raw * (high - low) / 65535))
        flags = np.concatenate([a["List_Cw_Vnir_Flags"], a["List_Cw_Swir_Flags"]]).astype(bool)
        waves = np.concatenate([a["List_Cw_Vnir"], a["List_Cw_Swir"]])
        if level == "l2d":
            assert file[swath.name]["Geometric Fields/Solar_Zenith_Angle"][0, 0] == 0
            left = float(a["Product_ULcorner_easting"]) - 15
            assert truth.transform6[2] == left
    value = np.concatenate(parts, axis=2)
    value[:, :, ~flags] = np.nan
    if level == "l1g":
        value[truth.raw_yxb == 65535] = np.nan
    if level == "l1":
        value[(truth.raw_yxb == 0).all(axis=2)] = np.nan
        assert (truth.physical_yxb[4, 1] == -0.25).sum() == 4
    same(value, truth)
    np.testing.assert_array_equal(np.isnan(truth.wavelength_nm), waves == 0)
    for part in (waves[:66], waves[66:]):
        assert (np.diff(part[part > 0]) < 0).all()


@pytest.mark.parametrize("level", ["rad", "rfl"])
def test_emit(products, tmp_path, level):
    """Fill, factor 10, the constant of the bad bands, and a look-up table that covers every pixel once or more."""
    truth = products.make(f"emit_{level}", tmp_path)
    with netCDF4.Dataset(truth.paths[0]) as file:
        cube = file["radiance" if level == "rad" else "reflectance"]
        assert cube.dimensions == ("downtrack", "crosstrack", "bands")
        assert cube._FillValue == -9999
        value = np.ma.filled(cube[...].astype(float), np.nan) * (10 if level == "rad" else 1)
        same(value, truth)
        np.testing.assert_allclose(file["sensor_band_parameters/wavelengths"][...], truth.wavelength_nm)
        gx = np.ma.filled(file["location/glt_x"][...], 0)
        gy = np.ma.filled(file["location/glt_y"][...], 0)
        assert ("good_wavelengths" in file["sensor_band_parameters"].variables) == (level == "rfl")
        a, b, c, d, e, f = truth.ortho_transform6
        np.testing.assert_allclose(file.geotransform, (c, a, b, f, d, e))
    inside = gx > 0
    np.testing.assert_array_equal(inside, truth.glt_row >= 0)
    np.testing.assert_array_equal(gy[inside] - 1, truth.glt_row[inside])
    assert 0.9 < len(set(zip(gx[inside], gy[inside], strict=True))) / truth.raw_yxb[:, :, 0].size <= 1
    if level == "rfl":
        bad = ~truth.good_band
        assert set(np.unique(truth.raw_yxb[:, :, bad])) == {np.float32(-9999), np.float32(-0.01)}


@pytest.mark.parametrize(("version", "count"), [("001", 8), ("003", 7)])
def test_emit_mask_is_a_file_of_its_own_with_named_bands(products, tmp_path, version, count):
    truth = products.make("emit_rfl", tmp_path, mask_version=version)
    with netCDF4.Dataset(truth.extra["mask_path"]) as file:
        names = list(file["sensor_band_parameters/mask_bands"][...])
        assert names == list(truth.quality)
        assert file["mask"].shape[2] == count
        for i, name in enumerate(names):
            np.testing.assert_array_equal(file["mask"][:, :, i], truth.quality[name])
    truth = products.make("emit_rad", tmp_path / "rad")
    with netCDF4.Dataset(truth.extra["obs_path"]) as file:
        i = [
            n.lower().startswith("to-sun zenith")
            for n in file["sensor_band_parameters/observation_bands"][...]
        ].index(True)
        np.testing.assert_allclose(file["obs"][:, :, i], truth.sun_zenith_yx)


def enmap_table(path, stored):
    """Gains and so on by the number of each band, and the background in no use."""
    root = ET.parse(path).getroot()  # noqa: S314
    assert root.tag == "level_X"
    items = root.findall("specific/bandCharacterisation/bandID")
    assert [int(i.get("number")) for i in items] == list(range(1, stored + 1))
    keys = ("wavelengthCenterOfBand", "FWHMOfBand", "GainOfBand", "OffsetOfBand")
    return root, np.array([[float(i.find(k).text) for k in keys] for i in items]).T


@pytest.mark.parametrize("variants", [{}, {"interleave": "pixel", "nodata_tag": True}])
@pytest.mark.parametrize("name", ["enmap_l1c", "enmap_l2a", "enmap_l2a_cog"])
def test_enmap_map(products, tmp_path, name, variants):
    """DN * gain + offset per band number; bands sorted, detectors alternating by the channel lists."""
    truth = products.make(name, tmp_path, **variants)
    root, (wave, _, gain, offset) = enmap_table(truth.extra["metadata"], 224)
    with rasterio.open(truth.paths[2]) as file:
        raw = file.read().transpose(1, 2, 0)
        assert tuple(file.transform)[:6] == truth.transform6
        assert file.crs.to_epsg() == truth.crs_epsg
    nodata = -32768 if "l2a" in name else 0
    factor = 1 if "l2a" in name else 1000
    same(np.where(raw == nodata, np.nan, (raw * gain + offset) * factor), truth)
    np.testing.assert_array_equal(wave, truth.wavelength_nm)
    assert (np.diff(wave) > 0).all()
    for key in ("vnir", "swir"):
        numbers = [
            int(n) for n in root.find(f"specific/{key}ProductQuality/expectedChannelsList").text.split(",")
        ]
        assert (truth.detector[np.array(numbers) - 1] == key).all()
    assert 90 - float(root.find("specific/sunElevationAngle/center").text) == pytest.approx(
        truth.sun_zenith_deg
    )
    cloud = next(p for p in truth.paths[0].glob("*QL_QUALITY_CLOUD*.TIF") if "SHADOW" not in p.name)
    with rasterio.open(cloud) as file:
        np.testing.assert_array_equal(file.read(1), truth.quality["cloud"])
    assert (truth.quality["classes"][truth.nodata_mask_yxb.all(axis=2)] == 3).all()


def test_enmap_l1b(products, tmp_path):
    """Two files, listed VNIR then SWIR, while the channel lists number by wavelength."""
    truth = products.make("enmap_l1b", tmp_path)
    root, (wave, _, gain, offset) = enmap_table(truth.extra["metadata"], 224)
    start = 0
    for key in ("vnir", "swir"):
        count = int(root.find(f"product/image/{key}/channels").text)
        part, bands = truth.parts[key], slice(start, start + count)
        with rasterio.open(part.paths[0]) as file:
            raw = file.read().transpose(1, 2, 0).astype(float)
            assert file.crs is None
        same(np.where(raw == 0, np.nan, (raw * gain[bands] + offset[bands]) * 1000), part)
        np.testing.assert_array_equal(wave[bands], part.wavelength_nm)
        numbers = [
            int(n) for n in root.find(f"specific/{key}ProductQuality/expectedChannelsList").text.split(",")
        ]
        np.testing.assert_array_equal(np.sort(wave)[np.array(numbers) - 1], wave[bands])
        start += count
    assert start == 224


def test_enmap_variants(products, tmp_path):
    with_space = products.make(
        "enmap_l2a", tmp_path / "n", namespace=True, prefix=False, missing_quality=True
    )
    root = ET.parse(with_space.extra["metadata"]).getroot()  # noqa: S314
    assert root.tag == "{http://www.enmap.org/schema}level_X"
    assert with_space.extra["metadata"].name == "METADATA.XML"
    gone = products.make("enmap_l1c", tmp_path / "g", missing_gain=True)
    assert gone.refusal
    assert gone.extra["metadata"].read_text().count("<GainOfBand>") == 223


@pytest.mark.parametrize("level", ["l1c", "l2a"])
def test_desis(products, tmp_path, level):
    """Gain and offset per band out of bandCharacterisation alone; a factor 10 to W m-2 sr-1 um-1."""
    truth = products.make(f"desis_{level}", tmp_path)
    root = ET.parse(truth.extra["metadata"]).getroot()  # noqa: S314
    assert len(list(root.iter("band"))) == 470
    bands = root.findall("specific/bandCharacterisation/band")
    keys = ("wavelengthCenterOfBand", "gainOfBand", "offsetOfBand")
    wave, gain, offset = np.array([[float(b.find(k).text) for k in keys] for b in bands]).T
    with rasterio.open(truth.paths[2]) as file:
        raw = file.read().transpose(1, 2, 0)
        assert raw.dtype == np.int16
        assert tuple(file.transform)[:6] == truth.transform6
    factor = 10 if level == "l1c" else 1
    same(np.where(raw == -32768, np.nan, (raw * gain + offset) * factor), truth)
    np.testing.assert_array_equal(wave, truth.wavelength_nm)
    assert bool(truth.quality) == (level == "l2a")
    assert products.make("desis_l2a", tmp_path / "short", one_band_short=True).refusal


def envi(path):
    """Read a raw ENVI file by SPy, in the order (y, x, band)."""
    return np.asarray(spectral.io.envi.open(f"{path}.hdr", str(path)).open_memmap(interleave="bip"))


def test_aviris_classic(products, tmp_path):
    """DN / gain x 10; -50 stands for no data; three steps back in wavelength; GDAL sees the same turned grid."""
    truth = products.make("aviris_classic", tmp_path)
    raw = envi(truth.paths[0]).astype(float)
    gain = np.loadtxt(next(tmp_path.glob("*.gain")), usecols=(0,))
    same(np.where(raw == -50, np.nan, raw / gain * 10), truth)
    assert np.flatnonzero(np.diff(truth.wavelength_nm) < 0).tolist() == [31, 95, 159]
    np.testing.assert_allclose(np.loadtxt(next(tmp_path.glob("*.spc")))[:, 0], truth.wavelength_nm)
    with rasterio.open(truth.paths[0]) as file:
        assert file.dtypes[0] == "int16"
        assert file.nodata is None
        np.testing.assert_allclose(tuple(file.transform)[:6], truth.transform6, rtol=1e-12)
        np.testing.assert_array_equal(file.read(7), truth.raw_yxb[:, :, 6])
    np.testing.assert_allclose(envi(next(tmp_path.glob("*obs_ort")))[:, :, 4], truth.sun_zenith_yx)


@pytest.mark.parametrize("ortho", [False, True])
def test_aviris_ng(products, tmp_path, ortho):
    truth = products.make("aviris_ng", tmp_path, ortho=ortho)
    raw = envi(truth.paths[0]).astype(float)
    same(np.where(raw == -9999, np.nan, raw * 10), truth)
    with rasterio.open(truth.paths[0]) as file:
        if ortho:
            np.testing.assert_allclose(tuple(file.transform)[:6], truth.transform6, rtol=1e-12)
        else:
            assert file.crs is None
            loc = envi(next(tmp_path.glob("*_loc")))
            np.testing.assert_allclose(loc[:, :, 0], truth.lon_yx)
            np.testing.assert_allclose(loc[:, :, 1], truth.lat_yx)


@pytest.mark.parametrize("level", ["rdn", "rfl"])
def test_aviris3_stores_bands_first(products, tmp_path, level):
    truth = products.make(f"aviris3_{level}", tmp_path)
    name = "radiance" if level == "rdn" else "reflectance"
    with netCDF4.Dataset(truth.paths[0]) as file:
        cube = file[f"{name}/{name}"]
        assert cube.dimensions[0] == "wavelength"
        value = np.ma.filled(cube[...].astype(float), np.nan).transpose(1, 2, 0)
        same(value * (10 if level == "rdn" else 1), truth)
        c, a, b, f, d, e = (float(v) for v in file["transverse_mercator"].GeoTransform.split())
        assert (a, b, c, d, e, f) == (truth.ortho_transform6 or truth.transform6)
        if level == "rdn":
            line = np.ma.filled(file["geolocation_lookup_table/line"][...], 0)
            np.testing.assert_array_equal(np.where(line > 0, line - 1, -1), truth.glt_row)
            np.testing.assert_allclose(file["lat"][...], truth.lat_yx)
        else:
            np.testing.assert_allclose(file["easting"][0], c + a / 2)
    turned = products.make("aviris3_rdn", tmp_path / "negative", negative_glt=True)
    with netCDF4.Dataset(turned.paths[0]) as file:
        assert file["geolocation_lookup_table/line"][...].min() < 0


def test_hyperion(products, tmp_path):
    """DN / 40 up to band 70, DN / 80 after; 0 is no data; the uncalibrated bands are 0 everywhere."""
    truth = products.make("hyperion_l1t", tmp_path)
    text = truth.paths[1].read_text()
    fields = dict(line.strip().split(" = ") for line in text.splitlines() if " = " in line)
    scaling = float(fields["SCALING_FACTOR_VNIR"]), float(fields["SCALING_FACTOR_SWIR"])
    value = np.empty(truth.raw_yxb.shape)
    for i in range(242):
        with rasterio.open(truth.paths[0] / fields[f"BAND{i + 1}_FILE_NAME"].strip('"')) as file:
            value[:, :, i] = file.read(1) / scaling[0 if i < 70 else 1]
            assert file.dtypes == ("int16",)
            assert tuple(file.transform)[:6] == truth.transform6
    same(np.where(value == 0, np.nan, value), truth)
    assert truth.good_band.sum() == 198
    assert 90 - float(fields["SUN_ELEVATION"]) == pytest.approx(truth.sun_zenith_deg)
    gap = products.make("hyperion_l1t", tmp_path / "gap", missing_band=100)
    assert not list(gap.paths[0].glob("*B100*"))
    hdf4 = products.make("hyperion_l1r", tmp_path / "l1r")
    assert hdf4.paths[0].read_bytes()[:4] == b"\x0e\x03\x13\x01"


@pytest.mark.parametrize("kind", ["directional", "bidirectional"])
def test_neon(products, tmp_path, kind):
    truth = products.make(f"neon_{kind}", tmp_path)
    with h5py.File(truth.paths[0]) as file:
        group = file["SJER/Reflectance"]
        data = group["Reflectance_Data"]
        raw = data[()]
        assert raw.dtype == np.int16
        fill, scale = data.attrs["Data_Ignore_Value"], data.attrs["Scale_Factor"]
        same(np.where(raw == fill, np.nan, raw / scale), truth)
        left, right, bottom, top = data.attrs["Spatial_Extent_meters"]
        a, _, c, _, e, f = truth.transform6
        assert (left, top, right, bottom) == (c, f, c + a * raw.shape[1], f + e * raw.shape[0])
        wave = group["Metadata/Spectral_Data/Wavelength"][()]
        bad = np.zeros(wave.size, bool)
        for i in (1, 2):
            low, high = group.attrs[f"Band_Window_{i}_Nanometers"]
            bad |= (wave >= low) & (wave <= high)
        np.testing.assert_array_equal(~bad, truth.good_band)
        assert ("Solar_Zenith_Angle" in group["Metadata/Logs"]) == (truth.sun_zenith_deg is not None)
        assert int(group["Metadata/Coordinate_System/EPSG Code"][()]) == truth.crs_epsg


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("zy1_ahsi", {}),
        ("zy1_ahsi", {"offset_column": False}),
        ("gf5_ahsi", {}),
        ("gf5b_ahsi", {"detector_first": True}),
    ],
)
def test_ahsi(products, tmp_path, name, variants):
    """DN * gain + offset with the two text files of each detector."""
    truth = products.make(name, tmp_path, **variants)
    for detector, part in truth.parts.items():
        lists = sorted(p for p in part.paths[0].parent.glob("*.raw") if detector.upper() in p.name)
        calibration = np.loadtxt(next(p for p in lists if "RadCal" in p.name), delimiter=",", ndmin=2)
        response = np.loadtxt(next(p for p in lists if "Spectralresponse" in p.name), delimiter=",")
        with rasterio.open(part.paths[0]) as file:
            raw = file.read().transpose(1, 2, 0)
        offset = calibration[:, 1] if calibration.shape[1] == 2 else 0
        same(np.where(raw == 0, np.nan, raw * calibration[:, 0] + offset), part)
        np.testing.assert_allclose(response[:, 0], part.wavelength_nm)


def test_matlab_and_numpy_cubes(products, tmp_path):
    """scipy, h5py and numpy read the same cube by MATLAB's own rules of order."""
    cube = products.make("mat_v5", tmp_path)
    np.testing.assert_array_equal(scipy.io.loadmat(cube.paths[0])["paviaU"], cube.raw_yxb)
    flat = products.make("mat_flat", tmp_path)
    content = scipy.io.loadmat(flat.paths[0])
    rows, cols = content["nRow"].item(), content["nCol"].item()
    stored = content["Y"].reshape(-1, rows, cols, order="F").transpose(1, 2, 0)
    np.testing.assert_array_equal(stored, flat.raw_yxb)
    new = products.make("mat_v73", tmp_path)
    assert new.paths[0].read_bytes()[:19] == b"MATLAB 7.3 MAT-file"
    assert new.paths[0].read_bytes()[512:516] == b"\x89HDF"
    with h5py.File(new.paths[0]) as file:
        np.testing.assert_array_equal(file["data"][()].transpose(), new.raw_yxb)
    for variants in ({}, {"fortran": True}, {"big_endian": True}):
        plain = products.make("npy", tmp_path, **variants)
        np.testing.assert_array_equal(np.load(plain.paths[0], allow_pickle=False), plain.raw_yxb)
    np.testing.assert_array_equal(np.load(products.make("npz", tmp_path).paths[0])["cube"], plain.raw_yxb)
    with pytest.raises(ValueError, match="pickle"):
        np.load(products.make("npy", tmp_path, pickled=True).paths[0], allow_pickle=False)


def test_links_lead_out_of_the_file(products, tmp_path):
    """The variants with links do hold them: h5py follows them unless it is told not to."""
    for name, place in (("prisma_l1", "HDFEOS/SWATHS/PRS_L1_HCO/Data Fields/SWIR_Cube"), ("mat_v73", "data")):
        truth = products.make(name, tmp_path / name, external_link=True)
        with h5py.File(truth.paths[0]) as file:
            assert isinstance(file.get(place, getlink=True), h5py.ExternalLink)


def test_order_finds_bands_by_wavelength(products, tmp_path):
    truth = products.make("enmap_l2a", tmp_path)
    shuffled = np.random.default_rng(0).permutation(224)[:100]
    np.testing.assert_array_equal(truth.order(truth.wavelength_nm[shuffled]), shuffled)
    with pytest.raises(AssertionError, match="no band"):
        truth.order(np.array([3000.0]))
