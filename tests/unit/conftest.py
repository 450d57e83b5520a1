"""How Hypothesis behaves here: no deadline, since a busy machine is not a bug."""

from hypothesis import settings

settings.register_profile("shoal", deadline=None, max_examples=120)
settings.load_profile("shoal")
