"""The `bandstream catalog` commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

catalog_app = typer.Typer(no_args_is_help=True, help="Scenes known by name.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
Name = Annotated[str, typer.Argument(help="Entry, or a YAML file.")]


@catalog_app.command("list")
def catalog_list(as_json: Json = False) -> None:
    """List the scenes that are known by name: your own (BANDSTREAM_CATALOG), then those of the package."""
    from ..catalog import list_catalog

    entries = list_catalog()
    if as_json:
        _print_json([entry.model_dump(mode="json") for entry in entries])
    for entry in () if as_json else entries:
        print(f"{entry.name:24s} {entry.title}{'' if entry.origin is None else f'  ({entry.origin})'}")


@catalog_app.command("show")
def catalog_show(name: Name, as_json: Json = False) -> None:
    """Print a catalog entry."""
    from ..catalog import load_catalog
    from ..config import dump_yaml

    entry = load_catalog(name, [Path.cwd()]).model_dump(mode="json", exclude_none=True)
    if as_json:
        _print_json(entry)
    else:
        print(dump_yaml(entry), end="")


@catalog_app.command("fetch")
def catalog_fetch(
    name: Name,
    to: Annotated[
        Path | None, typer.Option(help="Folder; by default the entry's own under $BANDSTREAM_DATA.")
    ] = None,
    allow_unverified: Annotated[
        bool, typer.Option("--allow-unverified", help="Take files whose checksum is not known.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fetch the files of an entry over http or https and compare their checksums."""
    from ..catalog import load_catalog
    from ..catalog.fetch import fetch

    entry = load_catalog(name, [Path.cwd()])
    found = fetch(entry, to, allow_unverified=allow_unverified, force=force, quiet=quiet or as_json)
    if as_json:
        _print_json({"entry": entry.name, "files": [file.as_dict() for file in found]})
        return
    for file in found:
        state = "checksum as known" if file.verified else f"NOT VERIFIED, sha256 {file.sha256}"
        print(f"{file.path}  {file.state}, {state}")
        if file.unpacked:
            print(f"  unpacked {len(file.unpacked)} files")


@catalog_app.command("add")
def catalog_add(
    scene: Annotated[Path, typer.Argument(help="Scene, as for `scene info`.")],
    name: Annotated[str | None, typer.Option(help="Name of the entry.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Label raster.")] = None,
    unlabelled: Annotated[int, typer.Option(help='Number in it that means "no label".')] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="YAML to write; NAME.yaml.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Describe a scene of your own as a catalog entry."""
    from ..catalog.add import entry_of_scene, write_entry
    from ..readers import open_scene

    entry = entry_of_scene(open_scene(scene), name=name, labels=labels, unlabelled=unlabelled)
    _written(entry, out, force=force, as_json=as_json, write=write_entry)


@catalog_app.command("import-stac")
def import_stac(
    item: Annotated[Path, typer.Argument(help="STAC item (JSON).")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="YAML to write; NAME.yaml.")] = None,
    allow_outside: Annotated[
        bool, typer.Option("--allow-outside", help="Take local files outside the item's folder.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make a catalog entry of a STAC item (1.0 or 1.1)."""
    from ..catalog.add import write_entry
    from ..catalog.from_stac import from_stac, read_item

    entry = from_stac(read_item(item), item, allow_outside=allow_outside)
    _written(entry, out, force=force, as_json=as_json, write=write_entry)


@catalog_app.command("export-stac")
def export_stac(
    name: Name,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON to write; NAME.json.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write an entry as a STAC 1.1 item; a scene whose file is there is opened for its bands and place."""
    from ..catalog import load_catalog
    from ..catalog.to_stac import can_validate, to_stac
    from ..errors import ConfigError
    from ..files import json_value, write_text

    entry = load_catalog(name, [Path.cwd()])
    out = Path(f"{entry.name}.json") if out is None else out
    if out.exists() and not force:
        raise ConfigError(f"{out} exists; give another --out, or --force to replace it.")
    document = to_stac(entry, out, _opened(entry))
    write_text(out, json.dumps(json_value(document), indent=1, allow_nan=False) + "\n")
    if as_json:
        _print_json({"item": str(out), "id": document["id"], "validated": "core" if can_validate() else None})
    elif can_validate():
        print(f"{out}  valid by the STAC 1.1 item schema (extensions not checked)")
    else:
        print(f"{out}  not checked: the package jsonschema is not installed")


def _opened(entry: Any) -> Any:
    """Open the scene of an entry; None where its file is not there."""
    from ..catalog import completed, require_files_inside, require_inside
    from ..config import find_data, parse
    from ..errors import SceneNotFoundError
    from ..readers import open_scene
    from ..workflow import SceneConfig

    try:
        places = entry.bases([Path.cwd()])
    except SceneNotFoundError:
        return None
    item = parse(SceneConfig, entry.scenes[0], f"catalog {entry.name}")
    path = find_data(item.path, places)
    if not path.exists():
        return None
    require_inside(item.path, path, entry, places)
    data_file = find_data(item.data_file, places) if item.data_file else None
    if item.data_file and data_file:
        require_inside(item.data_file, data_file, entry, places)
    scene = open_scene(path, data_file=data_file, **item.options())
    require_files_inside(scene.attrs["files"], entry, places)
    return completed(entry, scene)


def _written(entry: Any, out: Path | None, *, force: bool, as_json: bool, write: Any) -> None:
    out = Path(f"{entry.name}.yaml") if out is None else out
    write(entry, out, force=force)
    if as_json:
        _print_json({"entry": str(out), **entry.model_dump(mode="json", exclude_none=True)})
    else:
        print(f"{out}  use it as `scenes: {{catalog: {out}}}`")


def _print_json(value: Any) -> None:
    from ..files import json_value

    print(json.dumps(json_value(value), indent=1, allow_nan=False))
