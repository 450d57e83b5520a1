"""Parts of the front door: the calls of `Hub` by what they are about."""
