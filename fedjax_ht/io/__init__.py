"""Deprecated: readers of files are in `fedjax_ht.data.files`."""
