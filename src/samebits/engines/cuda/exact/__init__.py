"""Exact products in CUDA C++, for sm_90a."""
