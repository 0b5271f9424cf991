"""What differs between two stores: first by what they say of themselves, then by their values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from .errors import StoreCorruptError
from .store import FileRecord, PatchStore, read_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Groups of small arrays that are compared by value.
_SMALL = ("bands", "transforms", "classes", "tiles/index")
_TOLD_FILES = 10


def diff(a: PatchStore, b: PatchStore, *, pixels: bool = False) -> dict[str, Any]:
    """Compare two stores.

    Parameters
    ----------
    a, b
        The stores.
    pixels
        Also read every tile of both and compare the values.

    Returns
    -------
    dict
        `equal` (every file has the same bytes), and what differs, each part only where something does: `settings`
        (dotted name -> [a, b]), `versions`, `tiles`, `classes`, `counts` (the same), `sources` (list), `bands`, `arrays`
        (small arrays by name), `files`; with `pixels` also `pixels` for every tile array.
    """
    files_a, files_b = _manifest(a), _manifest(b)
    changed = [name for name in files_a if name in files_b and files_a[name] != files_b[name]]
    only_a, only_b = sorted(files_a.keys() - files_b), sorted(files_b.keys() - files_a)
    equal = not (changed or only_a or only_b)
    found: dict[str, Any] = {"a": str(a.path), "b": str(b.path), "equal": equal}
    if not equal:
        parts: dict[str, Any] = {
            "settings": _values(
                {"name": a.name, "workflow": a.attrs["workflow"]},
                {"name": b.name, "workflow": b.attrs["workflow"]},
            ),
            "versions": _values(a.attrs["versions"], b.attrs["versions"]),
            "tiles": _values(_layout(a), _layout(b)),
            "classes": _values({"names": a.class_names}, {"names": b.class_names}),
            "counts": _values(_counts(a), _counts(b)),
            "sources": _sources(a, b),
            "bands": _bands(a, b),
            "arrays": _small_arrays(a, b, {*changed, *only_a, *only_b}),
            "files": {"changed": sorted(changed), "only_a": only_a, "only_b": only_b},
        }
        found |= {name: part for name, part in parts.items() if part}
    if pixels:
        found["pixels"] = {name: _tiles(a, b, name) for name in a.tile_arrays if name in b.tile_arrays}
    return found


def _manifest(store: PatchStore) -> dict[str, FileRecord]:
    """Return what the files of a store were written as, once it is sure that the store still says of itself what it did."""
    files = read_manifest(store.path)
    if files.get("zarr.json") != FileRecord.of(store.path / "zarr.json"):
        raise StoreCorruptError(
            f"The root metadata {store.path / 'zarr.json'} have changed since they were written, so that nothing can be "
            "said of the store. Delete it and run its workflow again."
        )
    return files


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return what `diff` found as lines for people."""
    if found["equal"]:
        told = [f"{found['a']} and {found['b']} hold the same bytes"]
    else:
        told = [f"a {found['a']}", f"b {found['b']}"]
    for part in ("settings", "versions", "tiles", "classes", "counts"):
        told += [f"{part}: {key}: {one} -> {two}" for key, (one, two) in found.get(part, {}).items()]
    told += [f"sources: {text}" for text in found.get("sources", [])]
    told += [f"bands: {key}: {value}" for key, value in found.get("bands", {}).items()]
    told += [f"{name}: {_told(what)}" for name, what in found.get("arrays", {}).items()]
    for part, names in found.get("files", {}).items():
        if names:
            more = f" and {len(names) - _TOLD_FILES} more" if len(names) > _TOLD_FILES else ""
            told.append(f"files {part.replace('_', ' in ')}: {', '.join(names[:_TOLD_FILES])}{more}")
    told += [f"pixels: {name}: {_told(what)}" for name, what in found.get("pixels", {}).items()]
    return told


def _told(what: Mapping[str, Any]) -> str:
    if "only" in what:
        return f"only in {what['only']}"
    if "shapes" in what:
        return f"shapes {what['shapes'][0]} and {what['shapes'][1]}"
    if not what["different"]:
        return f"all {what['values']:,} values are the same"
    first = f", the first in tile {what['first_tile']}" if "first_tile" in what else ""
    return (
        f"{what['different']:,} of {what['values']:,} values differ, by {what['largest']:.6g} at most{first}"
    )


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name; stages by their kind, since each is a list entry of one key."""
    if isinstance(value, Mapping):
        items = [(str(key), inner) for key, inner in cast("Mapping[Any, Any]", value).items()]
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in cast("list[Any]", value)):
        items: list[tuple[str, Any]] = []
        seen: dict[str, int] = {}
        for number, inner in enumerate(cast("list[Any]", value)):
            keys = list(cast("Mapping[Any, Any]", inner)) if isinstance(inner, Mapping) else []
            if len(keys) == 1:
                kind = str(keys[0])
                seen[kind] = seen.get(kind, 0) + 1
                items.append((kind if seen[kind] == 1 else f"{kind}[{seen[kind]}]", inner[keys[0]]))
            else:
                items.append((str(number), inner))
    else:
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in items:
        found |= _flat(inner, f"{prefix}.{key}" if prefix else key)
    return found or {prefix: value}


def _values(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return what differs by dotted name, None where one side lacks it."""
    one, two = _flat(a), _flat(b)
    return {
        key.removeprefix("workflow."): [one.get(key), two.get(key)]
        for key in dict.fromkeys([*one, *two])
        if one.get(key) != two.get(key)
    }


def _layout(store: PatchStore) -> dict[str, Any]:
    return {**store.attrs["tiles"], **{key: store.attrs[key] for key in ("bands", "dtype", "codec")}}


def _counts(store: PatchStore) -> dict[str, Any]:
    return {key: store.attrs[key] for key in ("pixels", "labelled", "shared_pixels")}


def _sources(a: PatchStore, b: PatchStore) -> list[str]:
    """Tell scenes apart by their content; names come along for people."""
    one, two = ({source["scene"]: source for source in store.attrs["sources"]} for store in (a, b))
    told = [f"only in a: {source['scene_id']}" for key, source in one.items() if key not in two]
    told += [f"only in b: {source['scene_id']}" for key, source in two.items() if key not in one]
    for key in one:
        if key in two:
            parts = [part for part in {**one[key], **two[key]} if one[key].get(part) != two[key].get(part)]
            if parts:
                told.append(f"{one[key]['scene_id']}: other {', '.join(parts)}")
    if not told and list(one) != list(two):
        told.append("the same scenes in another order")
    for name, store in (("a", a), ("b", b)):
        skipped: Sequence[str] = store.attrs.get("skipped", ())
        if skipped:
            told.append(f"{name} was built without {', '.join(skipped)}")
    return told


def _bands(a: PatchStore, b: PatchStore) -> dict[str, Any]:
    one, two = a.chain.kept + 1, b.chain.kept + 1
    found: dict[str, Any] = {}
    if a.chain.source_bands != b.chain.source_bands:
        found["source_bands"] = [a.chain.source_bands, b.chain.source_bands]
    for name, there, here in (("kept_in_a_only", one, two), ("kept_in_b_only", two, one)):
        left = np.setdiff1d(there, here).tolist()
        if left:
            found[name] = left  # 1-based
    return found


def _small_arrays(a: PatchStore, b: PatchStore, files: set[str]) -> dict[str, Any]:
    """Compare the small arrays of which a file differs."""
    folders = {name.removesuffix("/zarr.json").partition("/c/")[0].removesuffix("/c") for name in files}
    found: dict[str, Any] = {}
    for name in sorted(folders):
        if any(name.startswith(f"{group}/") for group in _SMALL):
            one, two = _read(a, name), _read(b, name)
            if one is None and two is None:
                continue  # a group
            found[name] = (
                {"only": "a" if two is None else "b"} if one is None or two is None else compare(one, two)
            )
    return found


def _read(store: PatchStore, name: str) -> NDArray[Any] | None:
    import zarr

    from .storage import zarr_store

    place: Path = store.path / name
    try:
        return np.asarray(zarr.open_array(zarr_store(place), mode="r")[...])
    except (OSError, ValueError, KeyError):
        return None


def compare(a: NDArray[Any], b: NDArray[Any]) -> dict[str, Any]:
    """Compare two arrays: `values`, `different` (count) and `largest` (absolute difference); NaN equals NaN.

    Parameters
    ----------
    a, b
        Of one shape, else only their `shapes` are told.
    """
    if a.shape != b.shape:
        return {"shapes": [list(a.shape), list(b.shape)]}
    numbers = all(values.dtype.kind in "biuf" for values in (a, b))
    same = (a == b) | ((a != a) & (b != b)) if numbers else a == b
    different = int(a.size - np.count_nonzero(same))
    largest = 0.0
    if different and numbers:
        apart = np.abs(a[~same].astype(np.float64) - b[~same].astype(np.float64))
        # a number against NaN is as far apart as can be
        largest = float(np.where(np.isnan(apart), np.inf, apart).max())
    return {"values": int(a.size), "different": different, "largest": largest}


def _tiles(a: PatchStore, b: PatchStore, name: str) -> dict[str, Any]:
    """Compare a tile array chunk by chunk, so that no more than one of each store is in memory."""
    one, two = a.array(name), b.array(name)
    if one.shape != two.shape:
        return {"shapes": [list(one.shape), list(two.shape)]}
    total: dict[str, Any] = {"values": 0, "different": 0, "largest": 0.0}
    step = max(a.chunk_tiles, b.chunk_tiles)
    for start in range(0, len(a), step):
        stop = min(start + step, len(a))
        left, right = a.read_tiles(name, start, stop), b.read_tiles(name, start, stop)
        part = compare(left, right)
        if part["different"] and "first_tile" not in total:
            total["first_tile"] = start + int(
                np.argmax([not np.array_equal(x, y) for x, y in zip(left, right, strict=True)])
            )
        total["values"] += part["values"]
        total["different"] += part["different"]
        total["largest"] = max(total["largest"], part["largest"])
    return total
