"""Benchmarks of Shoal: `make bench`. Ratios against a peer or a physical limit, measured in the same run."""
