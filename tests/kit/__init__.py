"""What the tests share: small models, stores, servers, and the runs that they are compared with."""
