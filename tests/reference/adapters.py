"""Servers of low-rank adapters in NumPy, float64: one layer, clients (A [r, inputs], B [outputs,
r]) with their numbers of samples and scales."""

from typing import NamedTuple

import numpy as np


class Client(NamedTuple):
    """A client's adapter, samples and alpha / r."""

    a: np.ndarray
    b: np.ndarray
    samples: int
    scale: float


def shares(clients: list[Client]) -> np.ndarray:
    counts = np.array([client.samples for client in clients], np.float64)
    return counts / counts.sum()


def mean_product(clients: list[Client]) -> np.ndarray:
    """FlexLoRA's sum, and what FLoRA merges: sum_k p_k s_k B_k A_k, [outputs, inputs]."""
    total = 0
    for share, client in zip(shares(clients), clients):
        total = total + share * client.scale * client.b @ client.a
    return total


def holders_product(clients: list[Client]) -> np.ndarray:
    """raFLoRA's sum, block by block between the ranks that there are."""
    total, first = 0, 0
    for rank in sorted({len(client.a) for client in clients}):
        holders = [client for client in clients if len(client.a) >= rank]
        blocks = [c._replace(a=c.a[first:rank], b=c.b[:, first:rank]) for c in holders]
        total, first = total + mean_product(blocks), rank
    return total


def flexlora(clients: list[Client], rank: int, product=mean_product) -> np.ndarray:
    """scale B A as it comes down to a client of this rank: the best approximation of the product."""
    u, s, v = np.linalg.svd(product(clients), full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ v[:rank]


def hetlora(
    clients: list[Client], rank: int, scale: float, by_norms: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """A and B as they come down to a client of this rank."""
    weights = np.array([np.linalg.norm(client.b @ client.a) for client in clients])
    weights = weights / weights.sum() if by_norms else shares(clients)
    most = max(len(client.a) for client in clients)
    a = b = 0
    for weight, client in zip(weights, clients):
        missing, root = most - len(client.a), np.sqrt(client.scale)
        a = a + weight * root * np.pad(client.a, ((0, missing), (0, 0)))
        b = b + weight * root * np.pad(client.b, ((0, 0), (0, missing)))
    return a[:rank] / np.sqrt(scale), b[:, :rank] / np.sqrt(scale)


def tail(a: np.ndarray, b: np.ndarray, gamma: float) -> float:
    """Computes HetLoRA's regulariser of one layer."""
    first = int(gamma * len(a))
    return float(np.linalg.norm(a[first:]) * np.linalg.norm(b[:, first:]))


def by_holders(clients: list[Client], side: str) -> np.ndarray:
    """Rows of A, or columns of s_k B as rows, averaged by samples over the clients that have them."""
    most = max(len(client.a) for client in clients)
    rows = []
    for j in range(most):
        holders = [client for client in clients if len(client.a) > j]
        row = 0
        for share, client in zip(shares(holders), holders):
            row = row + share * (client.a[j] if side == "a" else client.scale * client.b[:, j])
        rows.append(row)
    return np.stack(rows)
