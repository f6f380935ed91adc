"""Membership inference by loss (Yeom et al., CSF 2018): a model's loss is lower on samples that it
was trained on.

The attacker has the model and labelled samples, and says "member" below some loss. How well that
tells a client's training samples from its test samples over all thresholds is the area under the
ROC curve: 0.5 is guessing.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import rankdata

from fedjax_ht.core.federation import Bucket
from fedjax_ht.core.method import Data, Method, PyTree

AT_ONCE = 64  # samples of a forward pass


def rule_of(method: Method) -> str:
    """The inference rule that is asked: the head, which was trained on the samples, or what the
    method reports."""
    return "head" if "head" in method.rules else method.rules[0]


def losses(
    method: Method, bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, split: str
) -> jax.Array:
    """A client's cross-entropy on each sample of one of its splits, by `rule_of`: float32 [max],
    inf where the rule gives the sample's class no score. Only the first `count` are real."""
    rule, (indices, _) = rule_of(method), data.splits[split]
    padded = jnp.pad(indices, (0, -len(indices) % AT_ONCE)).reshape(-1, AT_ONCE)

    def batch(index):
        x = data.preprocess(jax.tree.map(lambda leaf: leaf[index], data.inputs))
        scores = method.predict(bucket, client, downlink, x, jnp.ones(AT_ONCE, bool))[rule]
        own = jnp.take_along_axis(scores, data.labels[index][:, None], 1)[:, 0]
        return jnp.where(jnp.isfinite(own), jax.nn.logsumexp(scores, -1) - own, jnp.inf)

    return jax.lax.map(batch, padded).ravel()[: len(indices)]


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """The share of pairs in which a member's loss [n] is below another sample's [m], a tie counting
    half (Mann and Whitney); NaN where one of the sets is empty."""
    if not len(members) or not len(others):
        return float("nan")
    ranks = rankdata(np.concatenate([members, others]))[len(members) :].sum()
    return float((ranks - len(others) * (len(others) + 1) / 2) / (len(members) * len(others)))
