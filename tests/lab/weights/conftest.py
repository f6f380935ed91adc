"""Fixtures of the comparisons with torchvision."""

from tests.models.conftest import precision as precision
