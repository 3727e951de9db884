"""Ranks whose GPUs see each other's memory: partial sums go by stores over NVLink."""
