"""The KV cache of a request, layer by layer and step by step, and what stays of it afterwards."""
