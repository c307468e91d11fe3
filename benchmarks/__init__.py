"""Benchmarks, each a program that answers one question: ``python -m benchmarks.wait_time``."""
