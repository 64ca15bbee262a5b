"""Reducing a failing case to the smallest that fails in the same way."""
