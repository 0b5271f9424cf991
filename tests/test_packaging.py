"""What is distributed: every module and data file, nothing else, and a command line that starts light."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("pipeline", "train", "catalogs", "workflows")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HEAVY = ("torch", "torchmetrics", "tensorboard", "xarray", "dask", "rasterio", "scipy", "matplotlib", "zarr")


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a command; return its standard output, or fail with all that it said."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(*arguments: str | Path, **environment: str) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments, **environment)


def source_files() -> set[str]:
    """Return what belongs into the distribution, by its name inside it."""
    return {
        f"bandstream/{path.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what is needed to build, so that the real checkout gets no build folder."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    # A wheel must not pick up the tests that lie beside the packages.
    (copy / "tests").mkdir()
    (copy / "tests" / "test_nothing.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, checkout)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that holds the installed wheel and nothing else."""
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--no-compile", "--target", target, wheel)
    return target


def test_packages_are_the_folders_that_hold_modules() -> None:
    """A subpackage missing from the list would be left out of the wheel without a word."""
    folders = {
        "bandstream." + ".".join(path.parent.relative_to(ROOT).parts)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders
    for package in folders:
        folder = ROOT.joinpath(*package.split(".")[1:])
        assert (folder / "__init__.py").is_file(), f"{folder} has modules and no __init__.py"


def test_every_requirement_is_pinned_within_its_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert list(pins) == sorted(pins)
    # A build tag (`+cpu`) or a platform's own libraries would make the file useless elsewhere.
    assert not [name for name, version in pins.items() if "+" in version or name.startswith("nvidia")]
    extras = PROJECT["project"]["optional-dependencies"].values()
    texts = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]
    # an extra may be made of others
    for text in (line for line in texts if not line.startswith("bandstream[")):
        requirement = Requirement(text)
        assert requirement.specifier.contains(Version(pins[canonicalize_name(requirement.name)])), text


@pytest.mark.process
def test_wheel_holds_every_module_and_data_file_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == source_files()
    assert {"bandstream/pipeline/py.typed", "bandstream/train/py.typed"} <= packed
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.process
def test_installed_wheel_finds_its_modules_data_and_command(installed: Path, tmp_path: Path) -> None:
    code = (
        "import bandstream.pipeline, importlib.resources as r; print(bandstream.pipeline.__file__);"
        "print(sum(f.name.endswith('.yaml') for f in r.files('bandstream.workflows').iterdir()))"
    )
    file, workflows = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed)).split()
    assert Path(file).is_relative_to(installed)
    assert int(workflows) == len(list((ROOT / "workflows").glob("*.yaml")))
    said = run(installed / "bin" / "bandstream", "--version", cwd=tmp_path, PYTHONPATH=str(installed))
    assert PROJECT["project"]["version"] in said


@pytest.mark.process
def test_strict_editable_install_follows_the_checkout(checkout: Path, tmp_path: Path) -> None:
    here = sysconfig.get_path("purelib")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    pip(
        *("--python", python, "install", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--config-settings", "editable_mode=strict", "--editable", checkout),
        PYTHONPATH=here,  # for the build backend
    )
    # Behind the editable install on the path, the libraries of this environment (its own install of the package too).
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "zz_libraries.pth").write_text(here + "\n", encoding="utf-8")
    with (checkout / "pipeline" / "errors.py").open("a", encoding="utf-8") as file:
        file.write("\nADDED_LATER = 'seen'\n")
    said = run(
        python, "-c", "from bandstream.pipeline import errors; print(errors.ADDED_LATER)", cwd=tmp_path
    )
    assert said.strip() == "seen"
    assert PROJECT["project"]["version"] in run(
        tmp_path / "venv" / "bin" / "bandstream", "--version", cwd=tmp_path
    )


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["--help"], ["--version"]], ids=" ".join)
def test_command_line_starts_without_the_heavy_libraries(arguments: list[str], tmp_path: Path) -> None:
    """`--help` gathers the commands of both halves, so that it shows the heavy import of any of them."""
    code = (
        f"import sys; sys.argv = ['bandstream', *{arguments}]\n"
        "from bandstream.pipeline.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('heavy:', *[name for name in {HEAVY} if name in sys.modules])\n"
    )
    said = run(sys.executable, "-c", code, cwd=tmp_path)
    assert re.search(r"^heavy:(.*)$", said, re.MULTILINE)[1].split() == []


@pytest.mark.process
@pytest.mark.parametrize("half", ["pipeline", "train"])
def test_public_names_stay_what_they_are_whatever_was_imported_before(half: str, tmp_path: Path) -> None:
    """A module with the name of a public function would take its place as soon as something imports the module.

    And the whole of `pipeline` must come without torch.
    """
    code = (
        f"import sys, pkgutil, importlib, types, bandstream.{half} as half\n"
        "names = [m.name for m in pkgutil.walk_packages(half.__path__, half.__name__ + '.')]\n"
        "names = [name for name in names if not name.endswith('__main__')]\n"
        "[importlib.import_module(name) for name in names]\n"
        "taken = [n for n in half.__all__ if isinstance(getattr(half, n), types.ModuleType)]\n"
        "print(len(names), 'torch' in sys.modules, 'bandstream.train' in sys.modules, *taken)\n"
    )
    count, torch, train, *taken = run(sys.executable, "-c", code, cwd=tmp_path).split()
    modules = [path for path in (ROOT / half).rglob("*.py") if path.name != "__main__.py"]
    assert int(count) == len(modules) - 1  # without the half's own __init__
    assert (torch, train) == (str(half == "train"), str(half == "train"))
    assert taken == []


def test_a_notebook_completes_the_public_names() -> None:
    from bandstream import pipeline, train

    for half in (pipeline, train):
        assert set(half.__all__) <= set(dir(half))
