"""One-shot heads in float64, by the papers' formulas on the samples themselves."""

import numpy as np

ABSENT = -1e9


def one_hot(y: np.ndarray, num_classes: int) -> np.ndarray:
    return (y[:, None] == np.arange(num_classes)).astype(np.float64)


def upper_triangle(matrix: np.ndarray) -> np.ndarray:
    """Reads the upper triangle, entry by entry."""
    size = len(matrix)
    return np.array([matrix[i, j] for i in range(size) for j in range(i, size)])


def moments(x: np.ndarray, y: np.ndarray, num_classes: int) -> tuple:
    """Returns sum x x^T as a triangle, sums of x by class, and counts."""
    second = sum((np.outer(row, row) for row in x), np.zeros((x.shape[1],) * 2))
    by_class = np.stack([x[y == c].sum(0) for c in range(num_classes)])
    return upper_triangle(second), by_class, np.bincount(y, minlength=num_classes)


def afl(x: np.ndarray, y: np.ndarray, num_classes: int, rho: float) -> dict:
    """Ridge regression of one-hot labels, as least squares with sqrt(rho) I below the samples."""
    k = x.shape[1]
    rows = np.concatenate([x, np.sqrt(rho) * np.eye(k)])
    targets = np.concatenate([one_hot(y, num_classes), np.zeros((k, num_classes))])
    kernel = np.linalg.lstsq(rows, targets, rcond=None)[0]
    return head(kernel, np.zeros(num_classes), y)


def share_of_trace(x: np.ndarray, share: float) -> float:
    """A share of the mean eigenvalue of x^T x."""
    return share * np.sum(x * x) / x.shape[1]


def afl_merged(clients: list[tuple[np.ndarray, np.ndarray]], num_classes: int, gamma: float):
    """The paper's recursion over clients' ridge solutions, with its four inverses a step.

    Returns:
      The kernel [K, C].
    """
    eye, models = np.eye(clients[0][0].shape[1]), []
    for x, y in clients:
        c = x.T @ x + gamma * eye
        models.append((np.linalg.inv(c) @ x.T @ one_hot(y, num_classes), c))
    w, c = models[0]
    for w_new, c_new in models[1:]:
        r, r_new, both = np.linalg.inv(c), np.linalg.inv(c_new), np.linalg.inv(c + c_new)
        of_old = eye - r @ c_new + r @ c_new @ both @ c_new
        of_new = eye - r_new @ c + r_new @ c @ both @ c
        w, c = of_old @ w + of_new @ w_new, c + c_new
    return w


def fedcgs(
    x: np.ndarray,
    y: np.ndarray,
    num_classes: int,
    *,
    within: bool,
    shrinkage: float,
    prior: np.ndarray | None = None,
) -> dict:
    """The Gaussian classifier with one covariance; `prior` are the counts of each class behind the
    logarithm, by default those of y."""
    k, present = x.shape[1], [c for c in range(num_classes) if (y == c).any()]
    if within:
        rest = np.concatenate([x[y == c] - x[y == c].mean(0) for c in present])
        sigma = rest.T @ rest / (len(x) - len(present))
    else:
        sigma = np.cov(x.T)
    sigma = sigma + shrinkage * np.trace(sigma) / k * np.eye(k)
    counts = np.bincount(y, minlength=num_classes) if prior is None else prior
    kernel, bias = np.zeros((k, num_classes)), np.zeros(num_classes)
    for c in present:
        mean = x[y == c].mean(0)
        kernel[:, c] = np.linalg.solve(sigma, mean)
        bias[c] = np.log(counts[c] / counts.sum()) - mean @ kernel[:, c] / 2
    return head(kernel, bias, y)


def head(kernel: np.ndarray, bias: np.ndarray, y: np.ndarray) -> dict:
    """Rules out the classes that y does not have."""
    present = np.isin(np.arange(len(bias)), y)
    return {"kernel": np.where(present, kernel, 0), "bias": np.where(present, bias, ABSENT)}


def gaussians(x: np.ndarray, y: np.ndarray, num_classes: int, *, diagonal: bool) -> dict:
    """Returns each class's row of mean and variance, and its number, by FedPFT's formulas."""
    rows = {}
    for c in range(num_classes):
        if len(own := x[y == c]):
            mean = own.mean(0)
            spread = ((own - mean) ** 2).mean(0)
            spread = spread if diagonal else [spread.mean()]
            rows[c] = np.concatenate([mean, np.add(spread, 1e-6)]), len(own)
    return rows


def adamw_head(kernel, bias, batches, lr: float, decay: float = 0.01) -> tuple:
    """Trains a linear head by AdamW (Loshchilov and Hutter, Algorithm 2) on cross-entropy."""
    both = np.concatenate([kernel, bias[None]])
    first, second = np.zeros_like(both), np.zeros_like(both)
    for t, (x, y) in enumerate(batches, 1):
        x = np.concatenate([x, np.ones((len(x), 1))], 1)
        exp = np.exp(x @ both)
        gradient = x.T @ (exp / exp.sum(1, keepdims=True) - one_hot(y, both.shape[1])) / len(x)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        step = first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        both = both - lr * (step + decay * both)
    return both[:-1], both[-1]
