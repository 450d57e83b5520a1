"""A hub that a server keeps: the calls of HubService over HTTP."""
