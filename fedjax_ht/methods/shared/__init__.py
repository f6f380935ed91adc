"""Building blocks that several methods share; no module here is a method by itself."""
