"""Adapters: public attention functions brought to the one form that the properties test.

Each is a module to copy from: `--target properties.adapters.splash`, and what `properties.judging.
targets` lists of attributes says what a function claims.
"""
