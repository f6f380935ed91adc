"""The public names of `fedjax_ht.trust`, each imported when it is first used."""

from .defences import geometric_median as geometric_median
from .defences import median as median
from .defences import multi_krum as multi_krum
from .defences import norm_bound as norm_bound
from .defences import trimmed_mean as trimmed_mean
from .options import Attack as Attack
from .options import Defence as Defence
from .options import Privacy as Privacy
