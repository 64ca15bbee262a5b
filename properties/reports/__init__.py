"""A run as people read it: a page, and what GitHub shows. All are made of the run's data alone."""
