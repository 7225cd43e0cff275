"""Pages in one file for another machine: a tar archive, manifest first, parents before children.

What is read from an archive is trusted in nothing: names, sizes and every byte are checked.
"""
