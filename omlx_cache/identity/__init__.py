"""The properties that make KV incompatible: the model's fingerprint and the namespace made of
it."""
