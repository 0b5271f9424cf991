"""The README tells the truth: what it marks with `<!-- run -->` is run, in order, in one folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
# The comment, then the block that it marks, with at most blank lines between them.
BLOCK = re.compile(r"^<!-- run -->\s*^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def marked_blocks() -> list[tuple[int, str, str]]:
    """Return line number, language and code of each marked block."""
    text = README.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start()) + 1, m["language"], m["code"]) for m in BLOCK.finditer(text)]


def test_every_mark_has_its_block() -> None:
    """A mark that is not followed by a bash or python block would be passed over silently."""
    blocks = marked_blocks()
    assert blocks, f"{README.name} marks nothing to be run"
    assert len(blocks) == README.read_text(encoding="utf-8").count("<!-- run")
    assert {language for _, language, _ in blocks} <= {"bash", "python"}


def test_the_table_of_formats_names_every_reader_and_on_what_it_was_tried() -> None:
    """A reader that never met a file of its instrument must not be listed as if it had."""
    from bandstream.pipeline.readers.registry import READERS

    rows = re.findall(
        r"^\| (`[a-z`, -]+`) \| .+ \| (.+) \|$", README.read_text(encoding="utf-8"), re.MULTILINE
    )
    told = {name: tried for names, tried in rows for name in re.findall(r"[a-z-]+", names)}
    assert set(told) == {reader.name for reader in READERS}
    for reader in READERS:
        expected = {"real files": "files", "generated files": "generated files", "unproved": "unproved"}
        assert expected[reader.proved] in told[reader.name], reader.name
        assert ("generated" in told[reader.name]) == (reader.proved == "generated files"), reader.name


@pytest.mark.process
@pytest.mark.timeout(300)
def test_marked_blocks_run(tmp_path: Path) -> None:
    """Later blocks build on earlier ones, as for a reader who follows them."""
    for name in ("workflows", "catalogs"):  # the reader stands in a checkout
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    scripts = sysconfig.get_path("scripts")
    environment = {
        **os.environ,
        "PATH": scripts + os.pathsep + os.environ["PATH"],
        "PYTHONWARNINGS": "default",
    }
    interpreters = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
    for line, language, code in marked_blocks():
        done = subprocess.run(
            [*interpreters[language], code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        where = f"{README.name}, line {line}"
        assert done.returncode == 0, f"{where}: exit {done.returncode}\n{code}\n{done.stdout}\n{done.stderr}"
