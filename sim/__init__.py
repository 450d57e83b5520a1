"""The simulator: whole worlds of consumers, servers and a store in virtual time, by a seed.

A program of its own: `python -m sim --seed 7 --trace`, or with `--workers`. It runs the real rules of
`shoal.core` in a simulated shell, breaks everything around them, and lets checkers that share no code with
the rules judge what was seen.
"""
