"""The service without a network: streams, appends, reads and retention over a store."""
