"""Hours of requests from traces, small and paced: is everything flat?"""
