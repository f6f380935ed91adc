"""A model as the papers cut it: a feature extractor ("base") of any architecture and a head."""

import flax.linen as nn
import jax


class SplitModel(nn.Module):
    """An extractor and a head, cut where clients of different architectures agree.

    base: x [B, H, W, C] -> features [B, K]; head: features -> logits [B, num_classes].

    Any flax modules serve. `base` is called as base(x), or as base(x, train, mask) where `stateful`
    says that it keeps batch statistics: `train` picks batch or running statistics, `mask` bool [B]
    marks real samples.
    """

    base: nn.Module
    head: nn.Module
    stateful: bool = False

    def __post_init__(self):
        for part in ("base", "head"):
            module = getattr(self, part)
            if isinstance(module, type):
                raise ValueError(
                    f"SplitModel's {part} is the class {module.__name__}; give an instance of it"
                )
            if not isinstance(module, nn.Module):
                kind = type(module)
                raise ValueError(
                    f"SplitModel's {part} is a {kind.__module__}.{kind.__name__}; it must be a "
                    "Flax module (flax.linen)"
                )
        super().__post_init__()

    def features(
        self, x: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        return self.base(x, train, mask) if self.stateful else self.base(x)

    def classify(self, features: jax.Array) -> jax.Array:
        return self.head(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.classify(self.features(x))
