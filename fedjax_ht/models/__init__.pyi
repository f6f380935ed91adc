"""The public names of `fedjax_ht.models`, each imported when it is first used."""

from .adapters import lora as lora
from .cnn import cnn4 as cnn4
from .cnn import cnn5_group as cnn5_group
from .cnn import mlp as mlp
from .convnets import googlenet as googlenet
from .convnets import mobilenet_v2 as mobilenet_v2
from .convnets import resnet as resnet
from .efficientnet import efficientnet_lite as efficientnet_lite
from .groups import GROUPS as GROUPS
from .layers import Conv as Conv
from .layers import Linear as Linear
from .nnx_model import from_nnx as from_nnx
from .pixels import unet as unet
from .registry import model_group as model_group
from .registry import sliced_network as sliced_network
from .sliced import SLICED as SLICED
from .sliced import note_stage as note_stage
from .sliced import width_budgets as width_budgets
from .split import SplitModel as SplitModel
from .split import htc4_heads as htc4_heads
from .split import vit_head as vit_head
from .stacking import stack_blocks as stack_blocks
from .stacking import unstack_blocks as unstack_blocks
from .text import text_model as text_model
from .text import text_transformer as text_transformer
from .vits import vit as vit
