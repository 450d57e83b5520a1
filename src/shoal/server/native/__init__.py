"""The native API, over the hub: decode, check, call, encode."""
