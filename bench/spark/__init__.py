"""`make bench-spark`: the lines of Spark's side, with their ratios."""
