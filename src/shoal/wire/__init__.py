"""Bytes and columns to values and back. Nothing here moves: no socket, no file, no clock."""
