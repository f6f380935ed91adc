"""The protocols by which simulators of federated learning are compared, run by each of them side by side.

    python -m benchmarks.peers --environments=DIR

DIR has a virtual environment for each peer, made by hand and outside of the repository: `torch`, `pfl`, `flower`,
`blazefl`, `fedjax`. Each `with_<peer>.py` is a script for the Python of that environment, which has no fedjax_ht: it
trains by the peer's own engine and public interface.
"""
