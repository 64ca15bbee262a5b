"""Faults planted in the kernel on purpose: the measure of what the properties find."""
