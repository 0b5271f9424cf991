"""The `bandstream` command: what concerns scenes and stores; `train` adds its own commands by entry point.

Nothing heavy is imported before a command needs it, so that `bandstream --help` is there at once.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import warnings
from dataclasses import asdict
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import BandstreamError, BandstreamWarning
from .calibrate import scene_calibrate
from .catalog import catalog_app
from .convert import convert as scene_convert
from .options import Read, read_options
from .quicklook import quicklook
from .stores import store_diff, store_gc

EXIT_CODES = """
Exit codes: 0 done; 1 the system refused; 2 wrong usage; 10 configuration; 20 scene, 21 file not found, 22 format, 23 truncated
file, 24 labels; 30 empty split, 31 all pixels masked; 40 store, 41 store not found, 42 store unfinished, 43 store damaged,
44 store busy, 45 store does not fit, 46 store cannot be written, 47 object store; 50 memory budget, 51 workers or scheduler;
60 training, 61 other run in the folder, 62 checkpoint, 63 diverged; 130 interrupted.
"""
app = typer.Typer(
    help="From raw hyperspectral scenes to trained 3D networks, out of core and within a memory budget.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
scene_app = typer.Typer(no_args_is_help=True, help="Look at raw scenes.")
store_app = typer.Typer(no_args_is_help=True, help="Look at patch stores and check them.")
app.add_typer(scene_app, name="scene")
app.add_typer(store_app, name="store")
app.add_typer(catalog_app, name="catalog")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: --set tiles.size=32.")
]


def _version(asked: bool) -> None:
    if asked:
        print(f"bandstream {version('bandstream')}")
        raise typer.Exit


@app.callback()
def _main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    workflow: Annotated[Path, typer.Argument(help="Workflow YAML.")],
    overrides: Overrides = None,
    memory: Annotated[
        str | None, typer.Option(help="Most memory that all processes here may take; 1GiB if not given.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Work in so many processes instead of threads.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Work on a running Dask cluster: tcp://host:port.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Predict tiles and memory; read no pixel.")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Wait at most so long while another process builds the same store; 0 refuses at once.  [default: as "
            "long as it takes]",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Build the patch store of a workflow, or reuse the one that is there."""
    if workers is None and scheduler is None:
        _import_dask()
    from ..builder import run_build
    from ..engine import parse_bytes

    result = run_build(
        workflow,
        overrides or [],
        memory_bytes=None if memory is None else parse_bytes(memory),
        quiet=quiet or as_json,
        dry_run=dry_run,
        wait_seconds=wait,
        workers=workers,
        scheduler=scheduler,
    )
    if as_json:
        _print_json(
            {
                "store": str(result.path),
                "fingerprint": result.fingerprint,
                "reused": result.reused,
                "tiles": result.tiles,
                "predicted_peak_bytes": result.predicted_peak_bytes,
                "seconds": round(result.seconds, 3),
                "notes": result.notes,
                "skipped": [asdict(scene) for scene in result.skipped],
            }
        )
        return
    for note in () if quiet else result.notes:
        print(note)
    state = "reused" if result.reused else "would be built" if dry_run else f"built in {result.seconds:.1f} s"
    mib = result.predicted_peak_bytes / 2**20
    print(
        f"store {result.path}\n      {state}, {result.tiles} tiles"
        + (f", predicted peak {mib:.0f} MiB" if mib else "")
    )


@app.command()
def resolve(
    workflow: Annotated[Path, typer.Argument(help="Workflow YAML.")], overrides: Overrides = None
) -> None:
    """Print a workflow with every default filled in."""
    from ..config import dump_yaml
    from ..workflow import load_workflow

    print(dump_yaml(load_workflow(workflow, overrides or [])[0].resolved()), end="")


@app.command()
def schema() -> None:
    """Print the JSON Schema of workflow files, for editors."""
    from ..workflow import Workflow

    _print_json(Workflow.model_json_schema())


@app.command()
def simulate(
    out: Annotated[
        Path, typer.Argument(help="Header to write, OUT.hdr; OUT.img and OUT_labels.tif come beside it.")
    ],
    rows: Annotated[int, typer.Option(help="Lines.")] = 512,
    cols: Annotated[int, typer.Option(help="Samples.")] = 512,
    bands: Annotated[int, typer.Option(help="Bands between 400 and 2500 nm.")] = 200,
    classes: Annotated[int, typer.Option(help="Materials.")] = 6,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal bytes.")] = 0,
    as_json: Json = False,
) -> None:
    """Make a labelled scene: absorption features, mixtures, noise, water bands, stripes and a nodata border."""
    from ..simulation import simulate as make

    made = make(out, rows=rows, cols=cols, bands=bands, classes=classes, seed=seed)
    found = {"header": str(made.header), "data": str(made.data), "labels": str(made.labels)}
    if as_json:
        _print_json(found | {"class_names": list(made.class_names)})
    else:
        print("\n".join(f"{key} {value}" for key, value in found.items()))


@scene_app.command("info")
def scene_info(
    path: Annotated[
        Path,
        typer.Argument(
            help="Scene: file, product folder, folder of tiles, or s3://... of a GeoTIFF or Zarr."
        ),
    ],
    read: Read = None,
    as_json: Json = False,
) -> None:
    """Say what a scene is, which reader takes it and why."""
    from ..progress import runs_of
    from ..readers import open_scene
    from ..scene import summary
    from ..storage import locate

    found = summary(open_scene(locate(path), **read_options(read)))
    if as_json:
        _print_json(found)
        return
    found.pop("warnings")  # told already
    files = found.pop("files")
    found["files"] = files if len(files) < 4 else f"{len(files)} files, {files[0]} to {files[-1]}"
    wavelength, fwhm, good = (found.pop(key, None) for key in ("wavelength_nm", "fwhm_nm", "good_band"))
    for key, value in found.items():
        if value not in (None, "", []):
            print(f"{key:10s} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    if wavelength:
        print(f"wavelength {min(wavelength):.2f} to {max(wavelength):.2f} nm, {len(wavelength)} bands")
    if fwhm:
        print(f"fwhm       {min(fwhm):.2f} to {max(fwhm):.2f} nm")
    if good and not all(good):
        bad = [number for number, is_good in enumerate(good, 1) if not is_good]
        print(f"bad bands  {len(bad)} of {len(good)} are listed as bad (1-based): {runs_of(bad)}")


scene_app.command("quicklook")(quicklook)
scene_app.command("calibrate")(scene_calibrate)
scene_app.command("convert")(scene_convert)


@store_app.command("list")
def store_list(
    root: Annotated[Path, typer.Argument(help="Folder of the stores, or s3://...")] = Path("stores"),
    as_json: Json = False,
) -> None:
    """List the stores in a folder, unfinished ones too."""
    from concurrent.futures import ThreadPoolExecutor

    from ..storage import locate, sizes_below
    from ..store import list_stores

    root = locate(root)
    found = list_stores(root)
    with ThreadPoolExecutor(16) as pool:
        sizes = list(pool.map(lambda item: sum(sizes_below(item[0]).values()), found))
    rows: list[dict[str, Any]] = [
        {
            "store": str(path),
            "finished": store is not None,
            "tiles": len(store) if store else None,
            "bands": store.bands if store else None,
            "tile_size": store.tile_size if store else None,
            "halo": store.halo if store else None,
            "bytes": size,
        }
        for (path, store), size in zip(found, sizes, strict=True)
    ]
    if as_json:
        _print_json(rows)
        return
    for row in rows:
        what = f"{row['tiles']} tiles of {row['tile_size']} + 2 x {row['halo']}, {row['bands']} bands"
        print(
            f"{row['store']}  {what if row['finished'] else 'NOT FINISHED'}  {row['bytes'] / 2**20:.1f} MiB"
        )
    if not rows:
        print(f"There is no store in {root}.")


@store_app.command("info")
def store_info(path: Annotated[Path, typer.Argument(help="Store.")], as_json: Json = False) -> None:
    """Say what a store holds and what it was made from."""
    from ..store import PatchStore
    from ..storeinfo import describe, lines

    found = describe(PatchStore.open(path))
    if as_json:
        _print_json(found)
    else:
        print("\n".join(lines(found)))


@store_app.command("verify")
def store_verify(path: Annotated[Path, typer.Argument(help="Store.")], as_json: Json = False) -> None:
    """Read every file of a store and compare it with the manifest."""
    from ..store import PatchStore

    store = PatchStore.open(path)
    path, count = store.path, store.verify()
    if as_json:
        _print_json({"store": str(path), "files": count, "ok": True})
    else:
        print(f"{path}: {count} files are as they were written")


store_app.command("gc")(store_gc)
store_app.command("diff")(store_diff)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    # a user is told what was noticed, not at which line of which module
    prefix = "warning" if issubclass(category, BandstreamWarning) else category.__name__
    print(f"{prefix}: {message}", file=sys.stderr)


class _InterruptedByUser(BaseException):
    """Ctrl-C; KeyboardInterrupt would be swallowed by the command line library, which ends without a word."""


def _interrupt(*_: Any) -> None:
    raise _InterruptedByUser


def _import_dask() -> None:
    """Import Dask's arrays without SciPy and Jinja, which they would import whole for what nobody asks for here."""
    absent = [name for name in ("scipy", "jinja2") if name not in sys.modules]
    # None is how an import is blocked
    sys.modules.update(dict.fromkeys(absent))  # pyright: ignore[reportCallIssue, reportArgumentType]
    try:
        import dask.array  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        for name in absent:
            del sys.modules[name]


def main() -> None:
    """Run the command line; every error made on purpose ends as one paragraph and its own exit code."""
    # thousands of small objects come with the libraries; looking through them again and again takes a second in all
    gc.set_threshold(100_000)
    # rasterio imports boto3 where it is installed, for buckets that are read in another way here (see `s3.py`)
    sys.modules.setdefault("boto3", None)  # pyright: ignore[reportArgumentType] - None is how an import is blocked
    for point in entry_points(group="bandstream.commands"):
        point.load()(app)
    warnings.showwarning = _show_warning
    signal.signal(signal.SIGINT, _interrupt)
    try:
        app(prog_name="bandstream")
    except BandstreamError as error:
        print(f"bandstream: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except _InterruptedByUser:
        print("bandstream: interrupted; run the same command again to go on.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # whoever read our output has had enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        print(f"bandstream: the system refused: {error}", file=sys.stderr)
        sys.exit(1)
    finally:
        gc.freeze()  # what is left goes with the process
