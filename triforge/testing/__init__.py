"""Shipped fakes and conformance suites: what authors of adapters and our own tests use in place of the real thing."""
