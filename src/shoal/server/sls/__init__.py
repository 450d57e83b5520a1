"""Aliyun's own clients, unmodified: the wire of SLS (LogHub) over a hub."""
