"""Runs a function over items in forked processes, so that a crash or a hang of one item is its result and not the end."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
SECONDS = 120.0  # an item may take, on a machine that is busy
_FORK = multiprocessing.get_context("fork")  # the items are not pickled


def run(function: Callable[[Item], Result], items: Sequence[Item], failed: Callable[[Item, str], Result],
        jobs: int | None = None) -> list[Result]:
    """Results in the items' order; ``failed`` makes one of an item whose process died or took too long."""
    jobs = max(1, min(jobs or len(os.sched_getaffinity(0)), len(items)))
    shares = [range(start, len(items), jobs) for start in range(jobs)]
    results: dict[int, Result] = {}
    gc.collect()
    gc.freeze()  # what others left is not collected in every forked process, nor ended there
    try:
        with ThreadPoolExecutor(jobs) as pool:
            for done in [pool.submit(_share, function, items, share, failed) for share in shares]:
                results |= done.result()
    finally:
        gc.unfreeze()
    return [results[i] for i in range(len(items))]


def _share(function: Callable[[Item], Result], items: Sequence[Item], share: Sequence[int],
           failed: Callable[[Item, str], Result]) -> dict[int, Result]:
    results: dict[int, Result] = {}
    while len(results) < len(share):
        left = share[len(results):]
        receiver, sender = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_work, args=(function, [items[i] for i in left], sender), daemon=True)
        process.start()
        sender.close()
        why = ""
        for index in left:
            if not receiver.poll(SECONDS):
                why = f"no result after {SECONDS:.0f} s"
                process.kill()
            try:
                results[index] = receiver.recv()
            except EOFError:
                process.join()
                results[index] = failed(items[index], why or f"the process ended with {process.exitcode}")
                break
        process.join()
        receiver.close()
    return results


def _work(function: Callable[[Item], Result], items: Sequence[Item], sender: Connection) -> None:
    for item in items:
        sender.send(function(item))
