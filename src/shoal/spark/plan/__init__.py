"""The plan of a read: which offsets, which tasks, what came before what. Dry: rules and values, no I/O."""
