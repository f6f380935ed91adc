"""Names that a test registers, which the next one must not know."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from fedjax_ht.data.partition.registry import SPLITS
from fedjax_ht.methods.registry import FACTORIES


@contextlib.contextmanager
def nothing_registered() -> Iterator[None]:
    """Forgets after the block which methods and partitions were registered within it."""
    with mock.patch.dict(FACTORIES), mock.patch.dict(SPLITS):
        yield
