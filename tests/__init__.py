"""Tests of the library."""

from tests.shapes import check_core

check_core()  # before the library is imported
