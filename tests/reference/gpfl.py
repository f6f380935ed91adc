"""GPFL's client with linear extractor and head, by SGD.

Shared parameters are a flat dict: "base_kernel", "base_bias", "embeddings", and of the valve
"gamma_kernel", "gamma_bias", "gamma_scale", "gamma_shift" and the same of "beta".
"""

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import cross_entropy
from tests.reference.gradients import sgd_step

EPSILON = 1e-5


def condition(params, name: str, vector: np.ndarray) -> np.ndarray:
    hidden = np.maximum(vector @ params[f"{name}_kernel"] + params[f"{name}_bias"], 0)
    normal = (hidden - hidden.mean()) / np.sqrt(hidden.var() + EPSILON)
    return normal * params[f"{name}_scale"] + params[f"{name}_shift"]


def valve(params, rows: np.ndarray, vector: np.ndarray) -> np.ndarray:
    factor = condition(params, "gamma", vector) + 1
    return np.maximum(rows * factor + condition(params, "beta", vector), 0)


def conditions(embeddings, counts) -> tuple[np.ndarray, np.ndarray]:
    """g and p, of embeddings and a client's samples by class."""
    return embeddings.mean(0), np.asarray(counts) / np.sum(counts) @ embeddings


def cosines(rows: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(embeddings, axis=1)
    return rows @ embeddings.T / np.maximum(lengths, 1e-12)


def loss(params, x, y, *, general, personal, received, lam: float) -> float:
    rows = linear_client.features(params, x)
    own = valve(params, rows, personal) @ params["head_kernel"] + params["head_bias"]
    guided = valve(params, rows, general)
    value = cross_entropy(own, y)
    value += cross_entropy(cosines(guided, params["embeddings"]), y)
    return value + lam * np.sqrt(((guided - received[y]) ** 2).sum())


def train(shared, head, batches, *, general, personal, lr, lam, mu) -> tuple[dict, dict]:
    """Returns shared parameters and the head; embeddings and valve decay by mu."""
    params, received = shared | head, shared["embeddings"]
    given = {"general": general, "personal": personal, "received": received, "lam": lam}
    for x, y in batches:
        new = sgd_step(lambda p, x=x, y=y: loss(p, x, y, **given), params, lr)
        for name, value in params.items():
            if not name.startswith(("base", "head")):
                new[name] -= lr * mu * value
        params = new
    return {k: params[k] for k in shared}, {k: params[k] for k in head}
