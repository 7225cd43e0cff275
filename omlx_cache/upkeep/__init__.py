"""What a process does for its stores unasked: memory is given back, lost stores are closed."""
