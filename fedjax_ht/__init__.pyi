"""The public names: what `fedjax_ht.NAME` imports when it is first used, and what type checkers
read."""

from .configs.base import (
    apply_argument as apply_argument,
)
from .configs.base import (
    base_config as base_config,
)
from .configs.base import (
    method_config as method_config,
)
from .configs.base import (
    partition_config as partition_config,
)
from .core.aggregation import gather_received as gather_received
from .core.annotations import Count as Count
from .core.annotations import NonNegative as NonNegative
from .core.annotations import Positive as Positive
from .core.annotations import SearchRange as SearchRange
from .core.annotations import Share as Share
from .core.batches import Batch as Batch
from .core.bounds import (
    checked as checked,
)
from .core.bucket import Bucket as Bucket
from .core.bucket import features as features
from .core.bucket import head_scores as head_scores
from .core.bucket import init_variables as init_variables
from .core.bucket import logits as logits
from .core.bucket import own_features as own_features
from .core.federation import (
    Federation as Federation,
)
from .core.federation import (
    make_federation as make_federation,
)
from .core.federation import (
    make_sliced_federation as make_sliced_federation,
)
from .core.inputs import (
    AsStored as AsStored,
)
from .core.inputs import (
    Pixels as Pixels,
)
from .core.local_training import LocalTraining as LocalTraining
from .core.local_training import Loss as Loss
from .core.local_training import train as train
from .core.method import (
    ClientInfo as ClientInfo,
)
from .core.method import (
    Context as Context,
)
from .core.method import (
    Data as Data,
)
from .core.method import (
    Method as Method,
)
from .core.method import Pretrained as Pretrained
from .core.method import (
    Received as Received,
)
from .core.method import Split as Split
from .core.method import View as View
from .core.method import Wire as Wire
from .core.method import varied as varied
from .core.trees import select as select
from .core.wire import (
    Masked as Masked,
)
from .core.wire import (
    Metadata as Metadata,
)
from .core.wire import (
    wire_elements as wire_elements,
)
from .data.client_data import make_federation_data as make_federation_data
from .data.dataset import (
    ClientIndices as ClientIndices,
)
from .data.dataset import (
    Dataset as Dataset,
)
from .data.partition import (
    PARTITIONS as PARTITIONS,
)
from .data.partition import (
    PLANS as PLANS,
)
from .data.partition import (
    class_counts as class_counts,
)
from .data.partition import (
    make_partition as make_partition,
)
from .data.shift import shifted as shifted
from .data.sources import (
    dataset_names as dataset_names,
)
from .data.sources import (
    load_dataset as load_dataset,
)
from .experiment.weights import with_weights as with_weights
from .generators import (
    Card as Card,
)
from .generators import (
    Generator as Generator,
)
from .generators import (
    open_generator as open_generator,
)
from .losses import (
    adaptive_margin as adaptive_margin,
)
from .losses import (
    arcface_loss as arcface_loss,
)
from .losses import (
    class_prototype_distance as class_prototype_distance,
)
from .losses import (
    cosines as cosines,
)
from .losses import (
    cross_entropy as cross_entropy,
)
from .losses import (
    disagreement as disagreement,
)
from .losses import (
    diversity_loss as diversity_loss,
)
from .losses import (
    embedding_excess as embedding_excess,
)
from .losses import (
    image_diversity as image_diversity,
)
from .losses import (
    kernel_means as kernel_means,
)
from .losses import (
    kl_divergence as kl_divergence,
)
from .losses import (
    margin_contrastive as margin_contrastive,
)
from .losses import (
    masked_mean as masked_mean,
)
from .losses import (
    mmd_loss as mmd_loss,
)
from .losses import (
    moment_distance as moment_distance,
)
from .losses import (
    sample_prototype_mse as sample_prototype_mse,
)
from .losses import (
    supervised_contrastive as supervised_contrastive,
)
from .losses import (
    transferability as transferability,
)
from .losses import (
    weighted_cross_entropy as weighted_cross_entropy,
)
from .losses import (
    weighted_kl as weighted_kl,
)
from .methods import (
    DISTILLING as DISTILLING,
)
from .methods import (
    METHODS as METHODS,
)
from .methods import (
    method_factory as method_factory,
)
from .methods.dense import dense as dense
from .methods.dfrd import dfrd as dfrd
from .methods.fd import fd as fd
from .methods.fedapen import fedapen as fedapen
from .methods.fedavg import fedavg as fedavg
from .methods.fedclassavg import fedclassavg as fedclassavg
from .methods.feddropout import feddropout as feddropout
from .methods.fedftg import fedftg as fedftg
from .methods.fedgen import fedgen as fedgen
from .methods.fedgh import fedgh as fedgh
from .methods.fedkd import fedkd as fedkd
from .methods.fedktl import fedktl as fedktl
from .methods.fedper import fedper as fedper
from .methods.fedproto import fedproto as fedproto
from .methods.fedral import fedral as fedral
from .methods.fedrolex import fedrolex as fedrolex
from .methods.fedssa import fedssa as fedssa
from .methods.fedtgp import fedtgp as fedtgp
from .methods.fml import fml as fml
from .methods.heterofl import heterofl as heterofl
from .methods.lg_fedavg import lg_fedavg as lg_fedavg
from .methods.local import local as local
from .methods.shared.averaging import client_weights as client_weights
from .methods.shared.averaging import weighted_mean as weighted_mean
from .methods.shared.checking import check_method as check_method
from .methods.shared.prototypes import class_sums as class_sums
from .methods.shared.prototypes import mean_by_class as mean_by_class
from .methods.shared.supervised import train_model as train_model
from .models import (
    GROUPS as GROUPS,
)
from .models import (
    SLICED as SLICED,
)
from .models import (
    SplitModel as SplitModel,
)
from .models import (
    cnn4 as cnn4,
)
from .models import (
    cnn5_group as cnn5_group,
)
from .models import (
    googlenet as googlenet,
)
from .models import (
    htc4_heads as htc4_heads,
)
from .models import (
    mlp as mlp,
)
from .models import (
    mobilenet_v2 as mobilenet_v2,
)
from .models import (
    model_group as model_group,
)
from .models import (
    resnet as resnet,
)
from .models import (
    sliced_network as sliced_network,
)
from .models import (
    stack_blocks as stack_blocks,
)
from .models import (
    text_model as text_model,
)
from .models import (
    text_transformer as text_transformer,
)
from .models import (
    unstack_blocks as unstack_blocks,
)
from .models import (
    variables_from_torchvision as variables_from_torchvision,
)
from .models import (
    vit as vit,
)
from .models import (
    vit_head as vit_head,
)
from .models import (
    width_budgets as width_budgets,
)
from .runner.train import train_and_evaluate as train_and_evaluate
from .simulation.history import (
    best as best,
)
from .simulation.history import (
    by_trial as by_trial,
)
from .simulation.history import (
    run as run,
)
from .simulation.options import SimulationOptions as SimulationOptions
from .simulation.profile import (
    Profile as Profile,
)
from .simulation.profile import (
    by_chance as by_chance,
)
from .simulation.profile import (
    by_trace as by_trace,
)
from .simulation.simulation import (
    Simulation as Simulation,
)
from .simulation.simulation import (
    SimulationState as SimulationState,
)
from .simulation.simulation import (
    make_simulation as make_simulation,
)
from .simulation.simulation import (
    make_trials as make_trials,
)
from .simulation.state import copy_state as copy_state
