"""Flax modules, each a feature extractor and a head, and the groups that the papers deal out to clients."""

from fedjax_ht.models.cnn import cnn4, cnn5_group, mlp
from fedjax_ht.models.registry import GROUPS, model_group
from fedjax_ht.models.split import SplitModel

__all__ = ["GROUPS", "SplitModel", "cnn4", "cnn5_group", "mlp", "model_group"]
