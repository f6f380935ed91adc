"""The jax switches under which the library traces and runs, whatever other code has set.

States, messages and results have 32 bits. With 64 bits, loop carries would change their types,
messages would have twice the bytes, and a run could not resume a 32-bit one. Under strict promotion
of types or ranks, third-party models would not trace at all.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

STANDARD: dict[str, Any] = {
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
}
"""Switches of jax and the values that the library needs, which are jax's defaults."""


@contextlib.contextmanager
def standard_numerics() -> Iterator[None]:
    """Sets the switches in this thread only, inside a block or (as a decorator) a function."""
    switches: Any = jax  # type checkers do not know all of them by name
    with contextlib.ExitStack() as stack:
        for name, value in STANDARD.items():
            if getattr(jax.config, name) == value:
                continue
            # `enable_x64` is in jax.experimental before jax 0.8
            switch = name.removeprefix("jax_")
            place = switches if hasattr(switches, switch) else switches.experimental
            stack.enter_context(getattr(place, switch)(value))
        yield


def use_standard_numerics() -> None:
    """Sets the switches in all threads, for processes that only run the library."""
    for name, value in STANDARD.items():
        jax.config.update(name, value)
