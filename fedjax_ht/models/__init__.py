"""Flax modules, each a feature extractor and a head, and the groups that the papers deal out to
clients."""

from fedjax_ht.core.stages import note_stage
from fedjax_ht.models.adapters import lora
from fedjax_ht.models.cnn import cnn4, cnn5_group, mlp
from fedjax_ht.models.groups import GROUPS, SLICED
from fedjax_ht.models.heads import htc4_heads, vit_head
from fedjax_ht.models.inception import googlenet
from fedjax_ht.models.layers import Conv, Linear
from fedjax_ht.models.mobilenet import mobilenet_v2
from fedjax_ht.models.nnx_model import from_nnx
from fedjax_ht.models.registry import model_group, sliced_network
from fedjax_ht.models.resnets import resnet
from fedjax_ht.models.sliced import width_budgets
from fedjax_ht.models.split import SplitModel
from fedjax_ht.models.stacking import stack_blocks, unstack_blocks
from fedjax_ht.models.text import text_model
from fedjax_ht.models.torchvision import variables_from_torchvision
from fedjax_ht.models.transformers import text_transformer
from fedjax_ht.models.vits import vit

__all__ = [
    "GROUPS",
    "SLICED",
    "Conv",
    "Linear",
    "SplitModel",
    "cnn4",
    "cnn5_group",
    "from_nnx",
    "googlenet",
    "htc4_heads",
    "lora",
    "mlp",
    "mobilenet_v2",
    "model_group",
    "note_stage",
    "resnet",
    "sliced_network",
    "stack_blocks",
    "text_model",
    "text_transformer",
    "unstack_blocks",
    "variables_from_torchvision",
    "vit",
    "vit_head",
    "width_budgets",
]
