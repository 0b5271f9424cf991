"""What a very large stream asks of its storage: blocks fetched per rank and second, by walking the order itself.

    python tests/benchmarks/scale.py [SAMPLES PER SECOND AND RANK]

No data is read. The samples of some ranks are located one after the other, and blocks kept as the design says, twice
what the order mixes at a time and the least recently used ones going first: what is counted are the blocks that would
have to be fetched. Prints a table in Markdown.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from datetime import UTC, datetime

import numpy as np

from bandstream.train.stream.order import EpochOrder, EqualBlocks, SampleOrder, rank_samples

SAMPLES, RANKS, WINDOW, RANKS_WALKED = 10**9, 4096, 2, 8
BLOCK_BYTES = 1 << 20  # what a chunk of the default layout holds at least
#: What is streamed, samples in a block, batch size per rank, batches walked
CASES = (("tiles", 4, 32, 100), ("patches", 4096, 256, 200))


def blocks_fetched(order: EpochOrder, batch_size: int, rank: int, steps: int, kept: int) -> int:
    """Return the blocks that a rank fetches in `steps` batches from the middle of the epoch, once `kept` are filled."""
    samples = order.order.samples
    middle = samples // (batch_size * RANKS) // 2
    held: OrderedDict[int, None] = OrderedDict()
    fetched = [0, 0]
    for part in range(2):  # the first fills what is kept, the second counts
        step = np.arange(middle + part * steps, middle + (part + 1) * steps, dtype=np.int64)
        number, _ = rank_samples(step, batch_size, rank, RANKS, samples)
        for block in order.locate(number.ravel())[0].tolist():
            if block in held:
                held.move_to_end(block)
                continue
            fetched[part] += 1
            held[block] = None
            if len(held) > kept:
                held.popitem(last=False)
    return fetched[1]


def main() -> None:
    """Print the table."""
    rate = float(sys.argv[1]) if len(sys.argv) > 1 else 500.0
    print(
        f"{datetime.now(UTC):%Y-%m-%d}: 10^9 samples, {RANKS:,} ranks, {rate:g} samples/s on each, window {WINDOW}.\n"
    )
    print(
        "| samples | per block | lanes | blocks kept by a rank | fetches per 1,000 samples | requests/s | GiB/s |"
    )
    print("|---|---|---|---|---|---|---|")
    for kind, per_block, batch_size, steps in CASES:
        for lanes in (8, RANKS, 8 * RANKS):
            blocks = EqualBlocks(SAMPLES // per_block, per_block, per_block)
            order = SampleOrder(blocks, 0, lanes, WINDOW).epoch(0)
            kept = 2 * WINDOW * lanes // math.gcd(lanes, RANKS)
            ranks = np.linspace(0, RANKS - 1, RANKS_WALKED).astype(int).tolist()
            fetched = sum(blocks_fetched(order, batch_size, rank, steps, kept) for rank in ranks)
            each = fetched / (RANKS_WALKED * steps * batch_size)
            requests = each * rate * RANKS
            print(
                f"| {kind} | {per_block:,} | {lanes:,} | {kept} | {1000 * each:,.4g} | {requests:,.0f} | "
                f"{requests * BLOCK_BYTES / (1 << 30):,.1f} |"
            )


if __name__ == "__main__":
    main()
