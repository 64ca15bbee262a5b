"""Cases: one call of an attention function as data, and the arrays that follow from it."""
