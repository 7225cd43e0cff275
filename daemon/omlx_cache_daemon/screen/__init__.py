"""The full screen of `omlx-cache top`: what stores do, asked, summed up, laid out and drawn."""
