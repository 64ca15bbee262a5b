"""What the NumPy engine says when it cannot, or must not, go on."""


class Unsupported(Exception):
    """The NumPy engine cannot run this program; the message names what is missing.

    Raised before anything runs, so that the caller can use an interpreter instead.
    """


class KernelFault(Exception):
    """A kernel did what a TPU leaves undefined; the message says where and what.

    For example a block index or a slice outside its array, or a copy that is never awaited.
    """
