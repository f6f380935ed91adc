"""From a config to objects: the entries of a comparison, federation, data, method, and the run
folder."""
