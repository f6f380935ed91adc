"""The building blocks of several methods; no module here is a method by itself."""
