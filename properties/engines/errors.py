"""What an engine says when it cannot, or must not, go on."""


class Unsupported(Exception):
    """The engine cannot run or compile this program here; the message names what is missing.

    Raised before anything runs, so that the caller can use another engine instead.
    """


class KernelFault(Exception):
    """A kernel did what a TPU leaves undefined; the message says where and what.

    For example a block index or a slice outside its array, a copy that is never awaited, or a race.
    """
