"""A fixture that counts what is compiled."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """A list to which every program is added that XLA compiles, or that is read from disk."""
    names, listening = [], [True]

    def note(event: str, _, **__) -> None:
        if listening and event == "/jax/core/compile/backend_compile_duration":
            names.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    listening.clear()
