"""What tests and benchmarks of Shoal, and of things built on it, share.

For: real database servers on this machine (`shoal.testing.servers`). Not for: anything that a running hub
needs; nothing below this package may import it.
"""
