"""Compares simulators of federated learning side by side, each on the same protocols.

    python -m benchmarks.peers --environments=DIR

DIR holds a virtual environment for each peer, made by hand outside the repository: `torch`,
`pfl`, `flower`, `blazefl`, `flbench`, `fedjax`. Each `with_<peer>.py` runs in that
environment, which has no fedjax_ht, and trains by the peer's own engine and public interface.

The environments are made by pip, in DIR/<peer>: for Python 3.11 `torch==2.13.0 numpy` in torch,
also `pfl[pytorch]==0.6.0` in pfl and `flwr[simulation]==1.42.0` (ray 2.55.1) in flower, and
`fedjax==0.0.17 jax==0.10.2` in fedjax; for Python 3.12 `blazefl[contrib]==2.0.3 torch==2.14.1
numpy` in blazefl.

FL-bench is not a package. Its environment has a checkout (github.com/KarhouTam/FL-bench, commit
06e658b), whose folder a .pth file in site-packages names, and, for Python 3.11, `torch==2.14.1
torchvision==0.29.1 hydra-core==1.3.2 ray[default]==2.49.2 rich==13.9.4 pandas scikit-learn pynvml`.
"""
