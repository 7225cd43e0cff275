"""Pages: how a live cache is laid out, cut into payloads, and encoded."""
