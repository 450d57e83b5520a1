"""A hub for other machines: HTTP over a hub in this process. Stateless above its store."""
