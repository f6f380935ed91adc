"""Deprecated: `fedjax_ht.data.files.torch_files`."""

from fedjax_ht.core.moved import moved_names

__getattr__ = moved_names(
    __name__, {"load_state_dict": "fedjax_ht.data.files.torch_files.load_state_dict"}
)
