"""Seconds of a round, stage by stage."""

import time
from collections.abc import Callable
from typing import TypeVar

import jax

T = TypeVar("T")
Seconds = dict[str, float]


def stage(seconds: Seconds | None, name: str, call: Callable[[], T]) -> T:
    """Calls, waits for the result, and adds the seconds that took to `seconds[name]`; with None it
    only calls, since a round whose stages wait for each other takes longer."""
    if seconds is None:
        return call()
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
    return result
