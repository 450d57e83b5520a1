"""Workers in processes of their own, under a supervisor that starts, watches, restarts and stops them.

The rules of restarting are in `core.restarting`; how it looks is in `cli`. A process is held by two pipes:
its standard input, whose end tells it that the supervisor is gone, and one for what it tells of itself.
"""
