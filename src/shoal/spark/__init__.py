"""Spark's side of Shoal: a source, a sink, and processors on executors. Needs the extra `shoal[spark]`.

Importing this package alone imports neither Spark nor the hub: executors and the driver's short-lived
planners start it often.
"""
