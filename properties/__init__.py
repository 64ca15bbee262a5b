"""Property tests for flash-attention kernels: cases, how they are run, how they are judged."""
