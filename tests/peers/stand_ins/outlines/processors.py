JSONLogitsProcessor = None
