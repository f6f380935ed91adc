"""FedTGP's margin (Eq. 9) and its contrastive loss (Eq. 10)."""

import numpy as np

from tests.reference.classification import cross_entropy


def adaptive_margin(centres, present, cap: float, rule: str) -> float:
    """Largest distance between any two centres ("paper") or of a centre to its nearest one
    ("released"), capped."""
    known = [c for c in range(len(centres)) if present[c]]
    if len(known) < 2:
        return cap
    gaps = {c: [np.linalg.norm(centres[c] - centres[d]) for d in known if d != c] for c in known}
    pick = max if rule == "paper" else min
    return min(max(pick(distances) for distances in gaps.values()), cap)


def margin_contrastive(prototypes, labels, mask, global_prototypes, margin: float) -> float:
    """Cross-entropy over minus the distances, the true class `margin` further away."""
    logits = np.zeros((len(prototypes), len(global_prototypes)))
    for i, c in np.ndindex(logits.shape):
        logits[i, c] = -np.linalg.norm(prototypes[i] - global_prototypes[c]) - (
            margin if c == labels[i] else 0.0
        )
    return cross_entropy(logits, labels, mask)
