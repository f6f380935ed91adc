"""The protocol of pre-trained image generators: latents, images, and a card of their origin."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from fedjax_ht.core.trees import HostArray, PyTree


class Card(NamedTuple):
    """A generator's origin.

    Attributes:
      name: the generator's name in tables and messages.
      trained_on: names of its training data sets, where possible those of `lab.readers`; () if
        unknown.
      domain: the subject of its images.
      licence: the licence of its weights.
      origin: a sentence on its makers, sources and training.
    """

    name: str
    trained_on: tuple[str, ...] = ()
    domain: str = ""
    licence: str = ""
    origin: str = ""


class Generator(NamedTuple):
    """A frozen generator G = G_s after G_m (FedKTL): noise -> valid latent w -> image.

    Your own generator needs two functions, `sample_w` and `synthesize`.

    Attributes:
      card: the generator's origin.
      latent_dim: H, the length of w.
      sample_w: (variables, key, n) -> valid latents, float32 [n, H]; always JAX code.
      synthesize: (variables, w float [n, H]) -> images float32 [n, h, w, 3] in [0, 1].
      variables: the weights, a pytree of arrays that both functions take as their first argument.
      conditional: None, or (variables, key, labels int [n]) -> latents of these classes of the
        generator.
      num_labels: number of classes that `conditional` knows.
      host: True if `synthesize` is host code on NumPy arrays; it is then not compiled.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import fedjax_ht as fl
      >>> def sample_w(variables, key, n):
      ...     return jax.random.normal(key, (n, 16))
      >>> def synthesize(variables, w):
      ...     return jax.nn.sigmoid(w @ variables["kernel"]).reshape(len(w), 8, 8, 3)
      >>> generator = fl.generators.Generator(
      ...     card=fl.generators.Card("mine"),
      ...     latent_dim=16,
      ...     sample_w=sample_w,
      ...     synthesize=synthesize,
      ...     variables={"kernel": jnp.ones((16, 192))},
      ... )
      >>> w = generator.sample_w(generator.variables, jax.random.key(0), 4)
      >>> generator.synthesize(generator.variables, w).shape
      (4, 8, 8, 3)
    """

    card: Card
    latent_dim: int
    sample_w: Callable[[PyTree, jax.Array, int], jax.Array]
    synthesize: Callable[[PyTree, jax.Array], HostArray]
    variables: PyTree = ()
    conditional: Callable[[PyTree, jax.Array, jax.Array], jax.Array] | None = None
    num_labels: int = 0
    host: bool = False
