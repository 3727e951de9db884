"""Faults that people have reported, each as a property of its whole kind (ids as in each test)."""
