"""Commands of the second half: train, predict, demo, stream. Torch is imported only when one of them runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..pipeline.cli.options import Read, read_options
from ..pipeline.errors import ConfigError
from .cli_stream import stream

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

    from .trainer import RunResult

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: --set optimizer.lr=0.01.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(train)
    app.command()(predict)
    app.command()(demo)
    app.command()(stream)


def train(
    experiment: Annotated[Path, typer.Argument(help="Experiment YAML.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/<name> unless told.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a network on a patch store, or go on with a run that was cut off."""
    from .trainer import run_experiment

    settings = [*(overrides or []), *([] if out is None else [f"out={json.dumps(str(out))}"])]
    result = run_experiment(experiment, settings, quiet=quiet or as_json)
    if as_json:
        _print_json({"run": str(result.path), "metrics": result.summary["metrics"]})
    else:
        _print_run(result)


def predict(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    scene: Annotated[Path, typer.Argument(help="Scene.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="GeoTIFF to write. Of a scene in sensor geometry this is the orthorectified map; the map as the sensor "
            "saw it goes to <name>_sensor.tif beside it.",
        ),
    ] = Path("map.tif"),
    labels: Annotated[Path | None, typer.Option(help="Label raster to score the map with.")] = None,
    png: Annotated[
        Path | None, typer.Option(help="Also draw scene, labels and map beside each other.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write a band per class.")
    ] = False,
    tile: Annotated[int, typer.Option(help="Pixels predicted at once, along a side.")] = 256,
    store: Annotated[Path | None, typer.Option(help="The run's store, if it was moved.")] = None,
    read: Read = None,
    crs: Annotated[str | None, typer.Option(help="Of an orthorectified map, such as EPSG:32633.")] = None,
    resolution: Annotated[
        float | None, typer.Option(help="Pixel side of an orthorectified map, in the unit of its CRS.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the class map of a whole scene."""
    from ..pipeline import open_scene
    from .maps import check_outputs, map_outputs
    from .prediction import Predictor, map_grid, map_scene

    if out.suffix.lower() not in (".tif", ".tiff"):
        raise ConfigError(
            f"The map is a GeoTIFF: --out {out} must end in .tif; a picture is drawn with --png."
        )
    predictor = Predictor.of(run, store)
    opened = open_scene(scene, **read_options(read))
    placed = predictor.placed(opened)
    grid = map_grid(placed, crs=crs, resolution=resolution)
    outputs = map_outputs(out, sensor=grid is not None, probabilities=probabilities)
    check_outputs(
        [*outputs, *([png] if png else [])], [*opened.attrs["files"], *([labels] if labels else [])]
    )
    truth, split = _truth(predictor.store, placed, labels)
    quiet = quiet or as_json
    made = map_scene(
        predictor,
        predictor.transform(opened),
        out,
        tile=tile,
        probabilities=probabilities,
        grid=grid,
        quiet=quiet,
    )
    # labels and picture are of the scene's pixels, as the store has them
    own = Path(made["map_sensor"] or made["map"])
    made["scores"] = _scores(predictor.store, own, truth, split)
    made["png"] = None if png is None else _draw(predictor.store, placed, own, truth, made["scores"], png)
    if as_json:
        _print_json(made)
        return
    height, width = made["shape_yx"]
    print(
        f"map {made['map']}: {height} x {width} pixels, {made['pixels']} classified, {made['seconds']:.1f} s"
    )
    for name, score in made["scores"].items():
        print(f"{name:10s} {_words(score)}")
    for key in ("map_sensor", "probabilities", "png"):
        if made[key]:
            print(f"{key} {made[key]}")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("demo"),
    rows: Annotated[int, typer.Option(help="Lines of the simulated scene.")] = 256,
    cols: Annotated[int, typer.Option(help="Samples of the simulated scene.")] = 256,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate a scene, build its store, train, map it and draw it: everything once, in minutes."""
    from importlib.resources import as_file, files

    from ..pipeline import build, open_scene, simulate
    from .prediction import Predictor, map_scene
    from .trainer import run_experiment

    quiet = quiet or as_json
    say = (lambda _: None) if quiet else print
    _require_same_demo(out, rows, cols)
    say(f"1/4 simulating a scene of {rows} x {cols} pixels")
    scene = simulate(out / "scene.hdr", rows=rows, cols=cols)
    say("2/4 building the patch store")
    entry = {"path": str(scene.header.resolve()), "labels": str(scene.labels.resolve())}
    with as_file(files("bandstream.workflows")) as folder:
        store = build(
            folder / "demo.yaml",
            scenes=[entry],
            class_names=list(scene.class_names),
            store__root=str((out / "stores").resolve()),
        )
        say("3/4 training")
        settings = [
            f"store={json.dumps(str(store.path))}",
            "workflow=null",
            f"out={json.dumps(str(out / 'run'))}",
        ]
        result = run_experiment(folder / "demo_train.yaml", settings, quiet=quiet)
    say("4/4 mapping")
    predictor, opened = Predictor.of(result.path), open_scene(scene.header)
    target = out / "map.tif"
    made = map_scene(predictor, predictor.transform(opened), target, quiet=quiet)
    truth, split = _truth(store, opened, None)
    scores = _scores(store, target, truth, split)
    picture = _draw(store, opened, target, truth, scores, out / "demo.png")
    if as_json:
        paths = {"store": str(store.path), "run": str(result.path), "map": made["map"], "png": picture}
        _print_json(paths | {"metrics": result.summary["metrics"], "scores": scores})
        return
    _print_run(result)
    print(f"store {store.path}\nmap   {made['map']}\nPNG   {picture}")


def _require_same_demo(out: Path, rows: int, cols: int) -> None:
    """Refuse to put a scene of another size in place of that on which the folder's run was trained."""
    from ..pipeline import open_scene
    from ..pipeline.errors import ConfigError

    if not ((out / "scene.hdr").is_file() and (out / "run").is_dir()):
        return
    sizes = open_scene(out / "scene.hdr").sizes
    if (sizes["y"], sizes["x"]) != (rows, cols):
        raise ConfigError(
            f"{out} holds a demo of {sizes['y']} x {sizes['x']} pixels; choose another folder with --out for one of "
            f"{rows} x {cols}."
        )


def _truth(
    store: Any, scene: xr.Dataset, labels: Path | None
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Return labels (those given, else the store's own) and split of a scene, None where there are none."""
    from ..pipeline import LabelRaster
    from ..pipeline.errors import LabelError
    from .maps import scene_number, store_layer

    number = scene_number(store, scene)
    split = None if number is None else store_layer(store, "split", number)
    if labels is None:
        return (None if number is None else store_layer(store, "labels", number)), split
    height, width = int(scene.sizes["y"]), int(scene.sizes["x"])
    truth = LabelRaster.on_grid(labels, scene).read(slice(0, height), slice(0, width))
    if int(truth.max(initial=0)) > store.classes:
        raise LabelError(
            f"The labels {labels} hold class {int(truth.max())}; the run knows the classes 1 to {store.classes} "
            f"({', '.join(store.class_names)}). Give labels with these, 0 where there is none."
        )
    return truth, split


def _scores(
    store: Any, map_tif: Path, truth: NDArray[Any] | None, split: NDArray[Any] | None
) -> dict[str, Any]:
    from .maps import read_map, score_map

    return {} if truth is None else score_map(read_map(map_tif), truth, store.classes, split)


def _draw(
    store: Any,
    scene: xr.Dataset,
    map_tif: Path,
    truth: NDArray[Any] | None,
    scores: dict[str, Any],
    png: Path,
) -> str:
    """Draw scene, labels and map; the test score stands over the map where there is one."""
    from ..pipeline.pictures import rgb, side_by_side
    from .maps import read_map

    picture, caption = rgb(scene)
    split = "test" if "test" in scores else "all"
    score = scores.get(split)
    drawn = side_by_side(
        png,
        picture,
        truth,
        read_map(map_tif),
        store.class_names,
        store.class_colors,
        title=str(scene.attrs.get("scene_id", "")),
        caption=caption,
        score="" if not score or score["oa"] is None else f"{split} OA {100 * score['oa']:.1f} %",
    )
    return str(drawn)


def _print_run(result: RunResult) -> None:
    from rich.console import Console
    from rich.table import Table

    summary = result.summary
    table = Table("split", "pixels", "OA", "AA", "kappa", "macro F1")
    lines = [line for line in (summary["validation"], summary["metrics"]) if line is not None]
    for line in {line["split"]: line for line in lines}.values():
        numbers = (line[name] for name in ("oa", "aa", "kappa", "macro_f1"))
        table.add_row(
            line["split"], str(line["pixels"]), *("-" if n is None else f"{n:.4f}" for n in numbers)
        )
    if table.row_count:
        Console().print(table)
    else:
        print("the store has no validation or test pixels: nothing to score")
    state = "trained" if result.trained else "was finished before; nothing done"
    print(
        f"run   {result.path}: {state}, {summary['steps']} steps in {summary['epochs']} epochs, "
        f"{summary['seconds']:.1f} s, {summary['precision']}, {summary['parameters']} parameters"
    )
    for item in summary["maps"]:
        print(f"map   {item['map']}")


def _words(score: dict[str, Any]) -> str:
    numbers = {"OA": score["oa"], "AA": score["aa"], "kappa": score["kappa"], "macro F1": score["macro_f1"]}
    text = ", ".join(
        f"{name} {'-' if value is None else format(value, '.4f')}" for name, value in numbers.items()
    )
    return f"{text} ({score['pixels']} pixels)"


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))
