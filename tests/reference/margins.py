"""FedTGP's prototype margin, class by class, from the text of its Figure 1."""

import math


def nearest_and_mean(prototypes: dict[int, list[float]]) -> dict[int, tuple[float, float]]:
    """Class -> its prototype's least and mean Euclidean distance to the prototypes of other
    classes; a class that is alone has none."""
    margins = {}
    for label, prototype in prototypes.items():
        distances = []
        for other, another in prototypes.items():
            if other != label:
                distances.append(
                    math.sqrt(sum((a - b) ** 2 for a, b in zip(prototype, another, strict=True)))
                )
        if distances:
            margins[label] = min(distances), sum(distances) / len(distances)
    return margins
