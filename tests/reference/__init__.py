"""Slow, obvious NumPy versions of the library's formulas, float64, for the tests to compare
with."""
