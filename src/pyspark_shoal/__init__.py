"""How Spark finds `format("shoal")` by itself: it imports every top-level module named `pyspark_…`."""
