"""Model groups by the names that configs use. A user's own modules go to `make_federation` and need no entry here."""

from collections.abc import Callable

import flax.linen as nn

from fedjax_ht.models.cnn import cnn4, cnn5_group, mlp

Group = Callable[[int, tuple[int, int, int], int | None], dict[str, nn.Module]]
# (num_classes, (H, W, C), feature_dim or None for the group's own) -> {architecture: module}


def _cnn4(num_classes, input_shape, feature_dim):
    return {"cnn": cnn4(num_classes, feature_dim or 512)}


def _cnn5(num_classes, input_shape, feature_dim):
    return cnn5_group(num_classes, input_shape[-1], feature_dim)


def _mlp2(num_classes, input_shape, feature_dim):
    width = feature_dim or 32
    return {"mlp_narrow": mlp(num_classes, (32, width)), "mlp_wide": mlp(num_classes, (64, width))}


GROUPS: dict[str, Group] = {"cnn4": _cnn4, "cnn5": _cnn5, "mlp2": _mlp2}


def model_group(
    name: str, num_classes: int, input_shape: tuple[int, int, int], feature_dim: int | None = None
) -> dict[str, nn.Module]:
    """The modules of a group, in the order in which clients take them.

    Raises:
      ValueError: there is no such group, or the images are too small for it.
    """
    if name not in GROUPS:
        raise ValueError(f"unknown model group {name!r}; the groups are {', '.join(GROUPS)}")
    if name.startswith("cnn") and min(input_shape[:2]) < 16:
        raise ValueError(f"model group {name!r} needs images of at least 16x16 pixels, got {input_shape[:2]}")
    return GROUPS[name](num_classes, tuple(input_shape), feature_dim)
