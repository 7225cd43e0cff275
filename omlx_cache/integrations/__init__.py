"""The cache inside other people's schedulers; each module imports the package it is named for."""
