"""Whether this process is the process of a lane that is just importing the user's program.

A program without `if __name__ == "__main__"` would start its worker again there, and that one its lanes.
"""

is_booting = False
