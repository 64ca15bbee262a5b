"""Settles the environment before anything imports jax, then hands over to the harness's plugin."""

import os

# libtpu is here to compile for TPUs ahead of time. Without these it asks a cloud metadata server
# what machine this is, waits for the answer, and refuses to load into a second pytest worker.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

pytest_plugins = ["properties.plugin"]
