"""Three servers and the service on one directory, each killed, stopped and started anew in turn:
nobody else notices."""
