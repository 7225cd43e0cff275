"""Codecs: how a page's keys and values are encoded."""
