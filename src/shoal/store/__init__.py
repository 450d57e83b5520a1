"""Where the log is kept. A store loads, applies a rule of `core`, saves; it decides nothing."""
