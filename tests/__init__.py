"""Tests of the library."""

import tests.shapes  # noqa: F401, before the library, whose calls it checks
