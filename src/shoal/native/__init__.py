"""The native API, as both of its ends know it: the calls, the forms of bodies, the statuses. Nothing acts."""
