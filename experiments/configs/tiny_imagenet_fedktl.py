"""FedKTL with the generator of natural images on 40 classes of Tiny-ImageNet that it has not seen.

    fedjax-ht run --config=tiny_imagenet_fedktl
    fedjax-ht run --config=tiny_imagenet_fedktl:method=local
    fedjax-ht run --config=tiny_imagenet_fedktl --config.method.options.mu=0.0
    fedjax-ht run --config=tiny_imagenet_fedktl --config.method.options.source=valid
    fedjax-ht run --config=tiny_imagenet_fedktl --config.method.options.source=noise
    fedjax-ht run --config=tiny_imagenet_fedktl:arms=ablations
    fedjax-ht run --config=tiny_imagenet_fedktl:arms=mu

The small form of FedKTL's Table 7, at 32 pixels: the value of the transfer (mu 0), the part of it
that is due to the clients' prototypes (fixed valid pairs), and the effect of noise pairs. 20
clients of CNN-1..5, Dirichlet 0.1, 5,000 images; classes=20 after the file's name takes fewer.
Needs `tiny_imagenet_32.npz` in `data/` (images and labels, see `lab.readers.npz`).

The last two commands run `ABLATIONS` and `MU` one after another: the ablations of Table 7 and Table
17, and other weights of the transfer. Latents are in units of their spread, as in this experiment's
recorded results; a single run takes them as in the file with --config.method.options.latents=raw.
"""

from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config
from fedjax_ht.lab.config.entries import chosen, preset

# 100 random classes of the 170 that natural_32 has not seen
UNSEEN = tuple(
    """
    n04597913 n03250847 n02808440 n03179701 n03814639 n03992509 n07615774 n02841315 n01768244
    n07695742 n04560804 n03584254 n02281406 n04070727 n02509815 n02948072 n01855672 n04507155
    n02231487 n07579787 n03400231 n07875152 n03444034 n04376876 n02999410 n02892201 n03085013
    n04417672 n03930313 n04366367 n04371430 n04179913 n03388043 n02321529 n03160309 n04356056
    n04311004 n01983481 n04008634 n04133789 n01629819 n01944390 n03355925 n03763968 n03255030
    n04118538 n02883205 n07871810 n02395406 n02504458 n01641577 n03637318 n01644900 n07753592
    n04398044 n04328186 n07734744 n01882714 n04254777 n02268443 n02423022 n02233338 n02486410
    n04275548 n03706229 n04540053 n02099601 n04251144 n02906734 n02236044 n02480495 n03447447
    n02074367 n01784675 n02206856 n02927161 n02123045 n07715103 n03544143 n02106662 n02364673
    n03670208 n01774750 n02279972 n04532106 n02415577 n03042490 n02094433 n02058221 n04456115
    n03976657 n04465501 n03970156 n03838899 n01742172 n03201208 n03891332 n02988304 n02666196
    n03617480
    """.split()  # noqa: SIM905, a list would have a name a line
)

ABLATIONS = (
    "fedktl",
    "fedktl:mu=0.0",
    "fedktl:mse_weight=0.0",
    "fedktl:mmd_weight=0.0",
    "fedktl:classifier=head",
    "fedktl:transfer=images",
    "fedktl:scale=1.0:margin=0.0",
)
MU = ("fedktl:mu=0.0", "fedktl:mu=2.5", "fedktl:mu=5.0", "fedktl:mu=10.0", "fedktl:mu=50.0")
ARMS = {"ablations": ABLATIONS, "mu": MU}


def get_config(argument=None):
    config = base_config()
    config.entries = (preset("fedktl:generator=natural_32:latents=spread"),)
    config.method = method_config("fedktl", generator="natural_32", latents="spread")
    config.dataset.name = "npz:tiny_imagenet_32.npz"
    set_classes(config, "40")
    config.partition = partition_config("practical", alpha=0.1)
    config.rounds = 30
    config.evaluate.every = 5
    return apply_argument(config, argument, {"classes": set_classes, "arms": set_arms}, rounds=1)


def set_classes(config, value):
    if not value.isdigit() or not 2 <= int(value) <= len(UNSEEN):
        raise ValueError(f"classes is {value!r}; it must be an integer from 2 to {len(UNSEEN)}")
    config.dataset.classes = UNSEEN[: int(value)]
    config.dataset.subset = min(5_000, 220 * int(value))  # there are 220 images per class


def set_arms(config, value):
    if value not in ARMS:
        raise ValueError(f"arms is {value!r}; it must be {' or '.join(ARMS)}")
    config.method.name, config.entries = None, chosen(config.entries, ARMS[value])
