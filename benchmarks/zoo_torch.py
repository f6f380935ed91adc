"""Builds the zoo's models in PyTorch and trains them in turn; imported only to measure torch.

The convolutional networks are torchvision's, with the feature pooling and head of ours; the small
CNNs and the vision transformer are plain torch. Float32 is float32 here too: TF32 is switched off.
"""

import functools
import importlib.util
import resource
import statistics
from pathlib import Path
from types import ModuleType

import flax.linen
import torch
from torch import nn

from benchmarks.peers.protocols import Network
from benchmarks.peers.torch_network import torch_network
from benchmarks.torch_loop import random_batches, train_in_turn
from fedjax_ht.models.cnn import ConvFeatures
from fedjax_ht.models.vits import ViT

FEATURES = 512


class VisionTransformer(nn.Module):
    """Patches, class token, pre-norm encoder, the class token's last LayerNorm."""

    def __init__(self, image_shape: tuple[int, int, int], sizes: ViT):
        super().__init__()
        height, width, channels = image_shape
        tokens = 1 + (height // sizes.patch) * (width // sizes.patch)
        self.patches = nn.Conv2d(channels, sizes.width, sizes.patch, sizes.patch)
        self.token = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, tokens, sizes.width))
        layer = nn.TransformerEncoderLayer(
            sizes.width,
            sizes.heads,
            sizes.mlp_width,
            0.0,
            "gelu",
            1e-6,
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(
            layer, sizes.layers, nn.LayerNorm(sizes.width, 1e-6), False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.encoder(x + self.positions)[:, 0]


@functools.cache
def torchvision_models() -> tuple[ModuleType, torch.library.Library | None]:
    """Imports torchvision's models.

    If its compiled operators cannot be loaded, a library declares the two that the import needs. It
    must live as long, and is also returned.
    """
    folder, library = Path(importlib.util.find_spec("torchvision").origin).parent, None
    try:
        torch.ops.load_library(str(next(folder.glob("_C*"))))
    except (OSError, StopIteration):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return importlib.import_module("torchvision.models"), library


def build(
    name: str, module: flax.linen.Module, image_shape: tuple[int, int, int], num_classes: int
) -> nn.Module:
    """Builds the counterpart of our `module`, called `name` in its group."""
    base = module.base
    if isinstance(base, ConvFeatures):
        return torch_network(Network(image_shape, num_classes, base.convs, base.widths))
    pool = nn.AdaptiveAvgPool1d(FEATURES)
    if isinstance(base, ViT):
        hidden = module.head.widths[0]
        head = nn.Sequential(nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, num_classes))
        return nn.Sequential(VisionTransformer(image_shape, base), pool, head)
    zoo, _ = torchvision_models()
    options = (
        {"aux_logits": False, "init_weights": False, "transform_input": False}
        if name == "googlenet"
        else {}
    )
    model = getattr(zoo, name)(weights=None, **options)
    head = nn.Sequential(pool, nn.Linear(FEATURES, num_classes))
    if name == "mobilenet_v2":
        model.classifier = head
    else:
        model.fc = head
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):  # ours has none without a key
            layer.p = 0.0
    return model


def measure(
    modules: dict[str, flax.linen.Module],
    image_shape,
    num_classes,
    batch_size,
    clients,
    steps,
    rounds,
) -> dict:
    """Times rounds in which client i trains model i mod their number for `steps` steps.

    Returns:
      "round", median seconds; "peak" bytes; torch's "version" and "threads".
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    x, y = random_batches(image_shape, num_classes, batch_size, steps, device)
    names = [list(modules)[i % len(modules)] for i in range(clients)]
    models = [build(name, modules[name], image_shape, num_classes).to(device) for name in names]
    seconds = [train_in_turn(models, x, y) for _ in range(rounds)]
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "round": statistics.median(seconds[1:]),
        "peak": peak,
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
    }
