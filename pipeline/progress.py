"""What is told to people while work goes on. Progress: a bar on a terminal, a line now and then in a log, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

LINE_EVERY_SECONDS = 10.0


def tell(lines: Iterable[str]) -> None:
    """Print lines for people, where progress goes too."""
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def runs_of(numbers: Sequence[int]) -> str:
    """Write rising numbers as runs, ``130-135, 140``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


class Progress:
    """Handle of one running task; this base class shows nothing."""

    def advance(self, n: float = 1) -> None:
        """Count `n` more units as done."""

    def update(self, text: str) -> None:
        """Change the text behind the bar."""


def rate_text(done: float, total: float, seconds: float, size_bytes: float = 0) -> str:
    """Return the mean rate of work, ``35 MB/s`` where the size of all of it is known, else ``4.2/s``."""
    if not done or not total or seconds <= 0:
        return ""
    if size_bytes:
        return f"{size_bytes * done / total / seconds / 1e6:.3g} MB/s"
    return f"{done / seconds:.3g}/s"


class _Lines(Progress):
    """One line about every ten seconds, for output that is no terminal."""

    def __init__(self, description: str, total: float, size_bytes: float) -> None:
        self.description, self.total, self.size_bytes = description, total, size_bytes
        self.done, self.text = 0.0, ""
        self.start = self.last = time.monotonic()

    def advance(self, n: float = 1) -> None:
        self.done += n
        now = time.monotonic()
        if now - self.last >= LINE_EVERY_SECONDS:
            self.last = now
            spent = now - self.start
            left = spent / self.done * (self.total - self.done) if self.done else 0.0
            rate = rate_text(self.done, self.total, spent, self.size_bytes)
            share = f"{self.done:.0f}/{self.total:.0f}, {rate}, about {left:.0f} s left"
            print(f"{self.description}: {share} {self.text}".rstrip(), file=sys.stderr, flush=True)

    def update(self, text: str) -> None:
        self.text = text


@contextmanager
def progress(
    description: str, total: float, *, quiet: bool = False, size_bytes: float = 0
) -> Generator[Progress]:
    """Show the progress of `total` units of work on standard error.

    Parameters
    ----------
    description
        What is being done, in two or three words.
    total
        Number of units; `advance` counts them.
    quiet
        Show nothing.
    size_bytes
        What all the work reads or writes; the rate is shown in MB/s then, else in units.
    """
    if quiet:
        yield Progress()
    elif not sys.stderr.isatty():
        yield _Lines(description, total, size_bytes)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
        )
        with Bar(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(description, total=total, text="", rate="")
            start, done = time.monotonic(), 0.0

            class _Bar(Progress):
                def advance(self, n: float = 1) -> None:
                    nonlocal done
                    done += n
                    rate = rate_text(done, total, time.monotonic() - start, size_bytes)
                    bar.update(task, advance=n, rate=rate)

                def update(self, text: str) -> None:
                    bar.update(task, text=text)

            yield _Bar()
