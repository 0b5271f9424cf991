"""Metadata of products, changed at random: a scene or one of our errors, within bounds, never anything else."""

from __future__ import annotations

import random
import re
import time
import warnings

import pytest

from bandstream.pipeline.errors import BandstreamError, BandstreamWarning
from bandstream.pipeline.readers import ahsi, geotiff_tags, hyperion, open_scene
from bandstream.pipeline.readers.options import Notes
from bandstream.pipeline.readers.wavelengths import to_nanometres

TRIES = 300
WORDS = (
    *(
        b"nan",
        b"inf",
        b"-1",
        b"1e999",
        b"0",
        b"",
        b"99999999999999999999",
        b"\xff\xfe",
        b"\0",
        b"<a>",
        b"</a>",
    ),
    *(
        b"<!DOCTYPE a>",
        b"&x;",
        b"<![CDATA[",
        b"]]>",
        b"=",
        b'"',
        b",",
        b"\n",
        b"9" * 5000,
        b"<b/>" * 2000,
        "\u0661".encode(),
    ),
)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return the content with a few bytes, words, cuts or repetitions changed."""
    out = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        length = rng.choice((1, 1, 4, 30, 400))
        kind = rng.randrange(5)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at : at + length] = rng.choice(WORDS)
        elif kind == 2:
            out[at:at] = out[max(0, at - length) : at]
        elif kind == 3:
            del out[at : at + length]
        elif rng.random() < 0.2:
            del out[at:]
        else:  # a number of the text
            digits = [i for i in range(at, min(at + 300, len(out))) if 48 <= out[i] <= 57]
            if digits:
                out[digits[0] : digits[0] + 1] = rng.choice(WORDS)
    return bytes(out)


VALUES = (
    b"nan",
    b"inf",
    b"-1",
    b"0",
    b"",
    b"1e999",
    b"1e-320",
    b"9" * 5000,
    b"1,2,,",
    b"-32768",
    "\u0661".encode(),
    b"NA",
)
VALUE = re.compile(rb">([^<>\s][^<>]*)<|number=\"(\d+)\"")


def revalued(content: bytes, rng: random.Random) -> bytes:
    """Return well-formed XML with a few values changed; anything else changed as `mutated` does."""
    places = [m.span(m.lastindex or 0) for m in VALUE.finditer(content)]
    if not places:
        return mutated(content, rng)
    out = bytearray(content)
    for start, end in sorted(rng.sample(places, min(len(places), rng.randint(1, 3))), reverse=True):
        out[start:end] = rng.choice(VALUES)
    return bytes(out)


def small(text: str) -> str:
    """Return metadata without what is not read, so that mutations hit what is."""
    start, end = text.find("<product><image>"), text.find("<navigation>")
    return text if start < 0 else text[:start] + text[start:end] + "</product></level_X>"


def run(file, content: bytes, read, tries: int = TRIES) -> int:
    """Return how often reading was refused; anything but a result or a refusal fails."""
    rng = random.Random(0)
    refused = 0
    for _ in range(tries):
        file.write_bytes((mutated if rng.random() < 0.5 else revalued)(content, rng))
        start = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BandstreamWarning)
            try:
                read()
            except BandstreamError as error:
                refused += 1
                assert len(str(error)) < 3000  # noqa: PT017 - either outcome is right
        assert time.monotonic() - start < 10
    return refused


@pytest.mark.parametrize(
    ("name", "options", "tries"),
    [("enmap_l2a", {}, TRIES), ("enmap_l1b", {"detector": "swir"}, 100), ("desis_l1c", {}, 200)],
)
def test_xml_of_dlr_products(products, tmp_path, name, options, tries):
    truth = products.make(name, tmp_path)
    for layer in truth.extra["folder"].glob("*QL_*"):
        layer.unlink()
    metadata = truth.extra["metadata"]
    content = small(metadata.read_text(encoding="utf-8")).encode()
    metadata.write_bytes(content)
    assert run(metadata, content, lambda: open_scene(metadata, **options), tries) > tries // 4


@pytest.mark.parametrize("word", ["RadCal", "Spectralresponse"])
def test_text_files_of_ahsi(products, tmp_path, word):
    truth = products.make("zy1_ahsi", tmp_path)
    table = next(truth.extra["folder"].glob(f"*{word}_VNIR*"))
    content = table.read_bytes()

    def read():
        numbers = ahsi._table(str(table), 76, may_lack_second=word == "RadCal")
        to_nanometres(numbers[:, 0], "nm", "x", Notes(), fwhm=numbers[:, 1])

    assert run(table, content, read) > TRIES // 4


def test_mtl_of_hyperion(products, tmp_path):
    truth = products.make("hyperion_l1t", tmp_path)
    content = truth.paths[1].read_bytes()
    content = content[:900] + content[content.index(b"  GROUP = PRODUCT_PARAMETERS") :]
    mtl = tmp_path / "EO1H1_MTL_L1T.TXT"
    files = hyperion._Files("EO1H1", {}, str(mtl))

    def read():
        keys = hyperion.read_mtl(str(mtl))
        for key in hyperion.FACTORS:
            assert hyperion._factor(keys, key, files, Notes()) > 0
        for key in ("SUN_ELEVATION", "SUN_AZIMUTH"):
            hyperion._mtl_number(keys, key, "x")
        acquired = hyperion._acquired(keys)
        assert acquired is None or acquired.isascii()

    assert run(mtl, content, read) >= 1


def test_stac_items_beside_a_tiff(tmp_path):
    item = (
        b'{"type": "Feature", "assets": {"a": {"href": "a.tif", "bands": ['
        b'{"name": "x", "eo:center_wavelength": 0.46, "eo:full_width_half_max": 0.01},'
        b'{"name": "y", "eo:center_wavelength": 0.56, "eo:full_width_half_max": 0.01}]}}}'
    )
    sidecar, tiff = tmp_path / "a.stac.json", str(tmp_path / "a.tif")

    def read():
        source, names, path = geotiff_tags._stac_source(tiff, 2, Notes())
        assert (path is None) == (source is None)
        assert names is None or len(names) == 2
        if source is not None and source.values is not None:
            to_nanometres(source.values, "um", tiff, Notes(), fwhm=source.fwhm)

    run(sidecar, item, read)
    sidecar.write_bytes(b"[" * 100_000)
    notes = Notes()
    assert geotiff_tags._stac_source(tiff, 2, notes)[0] is None
    assert "cannot be read as JSON" in notes.messages[0]
