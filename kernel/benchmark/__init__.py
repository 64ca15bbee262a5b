"""What the kernel costs on a TPU, told from the compiler's own schedule, without a TPU."""
