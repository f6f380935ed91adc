"""Membership inference by loss (Yeom et al., CSF 2018).

A model's loss is lower on samples that it was trained on. The attacker has the model and labelled
samples, and calls a sample a member if its loss is below a threshold. The area under the ROC curve
says how well this separates a client's training samples from its test samples; 0.5 is guessing.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import rankdata

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.method import Method
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree

AT_ONCE = 64  # samples of a forward pass


def rule_of(method: Method) -> str:
    """Returns the inference rule whose loss is read: "head" if it exists, else the reported rule.

    The head was trained on the samples.
    """
    return "head" if "head" in method.rules else method.rules[0]


def losses(
    method: Method, bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, split: str
) -> jax.Array:
    """Computes a client's cross-entropy on each sample of a split, by the rule of `rule_of`.

    Args:
      method, bucket, client, downlink: the model, as for `Method.predict`.
      data: the client's own data.
      split: the split's name, such as "train".

    Returns:
      float32 [max], of which the first `count` are real; inf where the rule gives the sample's
      class no score.
    """
    rule, (indices, _) = rule_of(method), data.splits[split]
    padded = jnp.pad(indices, (0, -len(indices) % AT_ONCE)).reshape(-1, AT_ONCE)

    def batch(index):
        x = data.preprocess(jax.tree.map(lambda leaf: leaf[index], data.inputs))
        scores = method.predict(bucket, client, downlink, x, jnp.ones(AT_ONCE, bool))[rule]
        score = jnp.take_along_axis(scores, data.labels[index][:, None], 1)[:, 0]
        # FedProto's rule scores a class without a prototype -inf; inf - inf would be NaN.
        return jnp.where(jnp.isfinite(score), jax.nn.logsumexp(scores, -1) - score, jnp.inf)

    return jax.lax.map(batch, padded).ravel()[: len(indices)]


def auc(members: np.ndarray, non_members: np.ndarray) -> float:
    """Computes the area under the ROC curve (Mann and Whitney).

    Args:
      members, non_members: losses [n] and [m].

    Returns:
      The share of pairs in which a member's loss is below a non-member's; a tie counts half. NaN if
      a set is empty.
    """
    n, m = len(members), len(non_members)
    if not n or not m:
        return float("nan")
    ranks = rankdata(np.concatenate([members, non_members]))[n:].sum()
    return float((ranks - m * (m + 1) / 2) / (n * m))
