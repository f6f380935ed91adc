"""FjORD on [linear, ReLU] layers: slices of a model, a client's steps, and the server's means."""

import numpy as np

from tests.reference.classification import cross_entropy, log_softmax, softmax
from tests.reference.gradients import sgd_step

Model = dict[str, np.ndarray]


def channels(width: int, rate: float) -> int:
    return int(np.ceil(width * rate))


def index(name: str, shape: tuple[int, ...], rate: float) -> tuple[slice, ...]:
    """The entries of a slice: "k1", "b1" are the first layer, "hk" and "hb" the last."""
    ends = [channels(size, rate) for size in shape]
    if name == "k1":
        ends[0] = shape[0]  # pixels
    if name in ("hk", "hb"):
        ends[-1] = shape[-1]  # classes
    return tuple(slice(end) for end in ends)


def logits(params: Model, x: np.ndarray, rate: float) -> np.ndarray:
    part = {name: v[index(name, v.shape, rate)] for name, v in params.items()}
    for i in (1, 2):
        x = np.maximum(x @ part[f"k{i}"] + part[f"b{i}"], 0)
    return x @ part["hk"] + part["hb"]


def client(w: Model, batches, lr: float, whole: float, drawn: list[float], kd: bool) -> Model:
    """Steps on the drawn widths, of a client whose own is `whole`; `w` is the server's model."""

    def loss(now: Model, x, y, rate, target) -> float:
        scores = logits(now, x, rate)
        if not kd:
            return cross_entropy(scores, y)
        taught = -np.sum(target * log_softmax(scores)) / len(y)
        return taught + cross_entropy(logits(now, x, whole), y)

    for (x, y), rate in zip(batches, drawn):
        batch = x, y, rate, softmax(logits(w, x, whole))
        w = sgd_step(lambda p, batch=batch: loss(p, *batch), w, lr)
    return w


def server(w: Model, clients: list[tuple[float, int, Model]]) -> Model:
    """Each entry is the mean by samples over the clients whose slice has it."""
    new = {k: np.array(v) for k, v in w.items()}
    for k, v in w.items():
        for i in np.ndindex(v.shape):
            held = []
            for rate, samples, trained in clients:
                ends = [part.stop for part in index(k, v.shape, rate)]
                if all(place < end for place, end in zip(i, ends)):
                    held.append((samples, trained[k][i]))
            if held:
                new[k][i] = sum(n * x for n, x in held) / sum(n for n, _ in held)
    return new
