"""Measurements that answer one question each: growth, agents beside each other, traces, peers."""
