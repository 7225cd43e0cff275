"""What the tests share: small models, stores, servers, and the runs that they are compared with."""

from kit import locks

# Before anything of the product is imported, in processes that tests start too.
locks.install()
