"""What requests asked for and what they got: the records that people and tools read."""
