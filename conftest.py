"""Settles the environment before anything imports numpy or jax, then loads the harness's plugin."""

from properties import environment

environment.settle()

pytest_plugins = ["properties.session.plugin"]
