"""Measurements that a user can repeat: what each KV codec costs, saves and loses."""
